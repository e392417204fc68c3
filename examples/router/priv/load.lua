-- For wrk: asks again at once after an answer, and a little later after a refusal, as clients with some manners do.

local pause_ms = 0

function delay()
  return pause_ms
end

function response(status)
  if status == 503 then pause_ms = math.random(2, 10) else pause_ms = 0 end
end
