-- What the models of some responses read and wrote, sealed.

function operation.save_trace(new)
  if is_void(new) then
    return {'void'}
  end
  local response = key('response', new.ref)
  local size = tonumber(call('HGET', response, 'size') or 0)
  set_size(new.ref, size + #new.trace - call('HSTRLEN', response, 'trace'))
  call('HSET', response, 'trace', new.trace)
  return {'ok'}
end

function operation.trace(one)
  if not is_there(one.ref) then
    return {'missing'}
  end
  return {'ok', call('HGET', key('response', one.ref), 'trace')}
end
