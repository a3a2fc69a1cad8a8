-- Values that all servers share, by name.

function operation.agree(on)
  local agreed = single('agreed')
  local kept = call('HGET', agreed, on.name)
  if not kept or kept == on.instead_of then
    call('HSET', agreed, on.name, on.value)
    return {on.value}
  end
  return {kept}
end
