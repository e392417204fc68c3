%% Waits for what comes about by itself, never for a length of time: a test that needs a permit to be back asks until
%% it is.
-module(test_await).

-export([count/2, permits/1, value/2, value/3, gate/1, down/1, reason/1, answer/1, answer/2]).

%% How long anything may take before a test fails. Far longer than it takes on a busy machine.
-define(DEADLINE_MS, 20000).

%% So often it is asked again at once: most things are there within microseconds.
-define(QUICK_TURNS, 1000).

%% P4: when a death has been seen, the permits may still be on their way back.
-spec count(term(), non_neg_integer()) -> ok.
count(Key, Count) ->
    value(Count, fun() -> canal_lock:count(Key) end).

%% Of all keys together: that many on record, and that many counted, which they are for a little longer after a death.
-spec permits(non_neg_integer()) -> ok.
permits(Permits) ->
    value(Permits, fun() -> maps:get(permits, canal_lock:info()) end),
    value(Permits, fun() -> lists:sum([Counted || {_, Counted} <- canal_lock:keys()]) end).

-spec value(term(), fun(() -> term())) -> ok.
value(Wanted, Ask) ->
    value(Wanted, Ask, ?DEADLINE_MS).

-spec value(term(), fun(() -> term()), pos_integer()) -> ok.
value(Wanted, Ask, Within_ms) ->
    ask(Wanted, Ask, erlang:monotonic_time(millisecond) + Within_ms, ?QUICK_TURNS).

ask(Wanted, Ask, Deadline_ms, Quick) ->
    case Ask() of
        Wanted ->
            ok;
        Other ->
            erlang:monotonic_time(millisecond) < Deadline_ms orelse error({still, Other, instead_of, Wanted}),
            pause(Quick),
            ask(Wanted, Ask, Deadline_ms, max(0, Quick - 1))
    end.

%% What takes long must not be kept from a processor by those who wait for it.
pause(0) ->
    receive
    after 1 -> ok
    end;
pause(_) ->
    erlang:yield().

%% Until somebody opens the gate, a counter, by counting up: so many can begin together.
-spec gate(counters:counters_ref()) -> ok.
gate(Gate) ->
    case counters:get(Gate, 1) of
        0 ->
            erlang:yield(),
            gate(Gate);
        _ ->
            ok
    end.

%% Until these processes are dead.
-spec down([pid()]) -> ok.
down(Pids) ->
    lists:foreach(fun reason/1, [{Pid, monitor(process, Pid)} || Pid <- Pids]).

%% Why a process has died that is monitored.
-spec reason({pid(), Monitor :: reference()}) -> term().
reason({Pid, Monitor}) ->
    receive
        {'DOWN', Monitor, process, Pid, Reason} -> Reason
    after ?DEADLINE_MS -> error({still_alive, Pid})
    end.

%% The message `{Ref, Answer}'.
-spec answer(reference()) -> term().
answer(Ref) ->
    answer(Ref, make_ref()).

%% From somebody who is monitored.
-spec answer(reference(), Monitor :: reference()) -> term().
answer(Ref, Monitor) ->
    receive
        {Ref, Answer} -> Answer;
        {'DOWN', Monitor, process, _, Reason} -> error({died_before_it_answered, Reason})
    after ?DEADLINE_MS -> error(no_answer)
    end.
