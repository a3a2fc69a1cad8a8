-- Values that all servers share, by name.

function operation.compare_and_set(new)
  local values = single('shared_values')
  local current = call('HGET', values, new.name)
  if not current or current == new.expected then
    call('HSET', values, new.name, new.value)
    return {new.value}
  end
  return {current}
end

-- `padding` counts as memory in use, and is written nowhere.
function operation.check(by)
  call('SET', single('check'), #by.padding)
  return {'ok'}
end
