%% A timed loop of calls with one key. A macro generates it, because an indirect call of a module or fun costs as much
%% as some of the measured differences.
-define(LOOP(Name, Calls),
    Name(_Key, _MaxPer, _Buckets, 0) ->
        ok;
    Name(Key, MaxPer, Buckets, Times) ->
        Calls,
        Name(Key, MaxPer, Buckets, Times - 1)
).
