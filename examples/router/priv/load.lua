-- For wrk: sends the next request immediately after an answer, and after a pause of 2 to 10 ms after a refusal.

local pause_ms = 0

function delay()
  return pause_ms
end

function response(status)
  if status == 503 then pause_ms = math.random(2, 10) else pause_ms = 0 end
end
