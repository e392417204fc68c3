%% Waits for a state or a message, never for a fixed time. A test that needs a state asks for it until it is reached.
-module(test_await).

-export([count/2, permits/1, nothing_held/0, value/2, value/3, last_value/3, gate/1, down/1, reason/1, answer/1]).
-export([answer/2, messages/0, exit_reason/1, traced/1, in_parallel/2]).

%% A wait fails after this time. It is much longer than anything takes on a busy machine: 500 locks took 20 s there.
-define(DEADLINE_MS, 120_000).

%% The first attempts follow each other without a pause: most states are reached within microseconds.
-define(QUICK_ATTEMPTS, 1000).

%% P4: the VM may release the permits of a process shortly after other processes see that it is dead.
-spec count(term(), non_neg_integer()) -> ok.
count(Key, Count) ->
    value(Count, fun() -> canal_lock:count(Key) end).

%% The permits of all keys: the total of the records, and the total of the counts, which drops a little later after a
%% death.
-spec permits(non_neg_integer()) -> ok.
permits(Permits) ->
    value(Permits, fun() -> maps:get(permits, canal_lock:info()) end),
    value(Permits, fun() -> lists:sum([Counted || {_, Counted} <- canal_lock:keys()]) end).

%% Waits until no permit is held and no holder is on record.
-spec nothing_held() -> ok.
nothing_held() ->
    value({0, 0}, fun() ->
        #{permits := Permits, holders := Holders} = canal_lock:info(),
        {Permits, Holders}
    end).

%% Until `Ask' returns the wanted value.
-spec value(term(), fun(() -> term())) -> ok.
value(Wanted, Ask) ->
    value(Wanted, Ask, ?DEADLINE_MS).

-spec value(term(), fun(() -> term()), non_neg_integer()) -> ok.
value(Wanted, Ask, Within_ms) ->
    case last_value(Wanted, Ask, Within_ms) of
        Wanted -> ok;
        Other -> error({still, Other, instead_of, Wanted})
    end.

%% The wanted value, or the value after this time.
-spec last_value(Value, fun(() -> Value), integer()) -> Value.
last_value(Wanted, Ask, Within_ms) ->
    ask(Wanted, Ask, erlang:monotonic_time(millisecond) + Within_ms, ?QUICK_ATTEMPTS).

ask(Wanted, Ask, Deadline_ms, Quick) ->
    Value = Ask(),
    case Value =:= Wanted orelse erlang:monotonic_time(millisecond) >= Deadline_ms of
        true ->
            Value;
        false ->
            pause(Quick),
            ask(Wanted, Ask, Deadline_ms, max(0, Quick - 1))
    end.

%% A long wait must leave the processor to the processes that it waits for.
pause(0) ->
    receive
    after 1 -> ok
    end;
pause(_) ->
    erlang:yield().

%% Until a test opens the gate, which is a counter, by adding to it. So several processes can start at the same moment.
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

%% The exit reason of a process that the caller monitors.
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

%% The same from a process that the caller monitors.
-spec answer(reference(), Monitor :: reference()) -> term().
answer(Ref, Monitor) ->
    receive
        {Ref, Answer} -> Answer;
        {'DOWN', Monitor, process, _, Reason} -> error({died_before_it_answered, Reason})
    after ?DEADLINE_MS -> error(no_answer)
    end.

%% Calls the function for all elements at the same time, each in its own process. The answers are in the order of the
%% elements. Each call limits its own time.
-spec in_parallel(fun((Element) -> Answer), [Element]) -> [Answer].
in_parallel(Do, Elements) ->
    Caller = self(),
    Calls = [spawn_monitor(fun() -> Caller ! {self(), in_parallel, Do(Element)} end) || Element <- Elements],
    [
        receive
            {Pid, in_parallel, Answer} ->
                true = demonitor(Monitor, [flush]),
                Answer;
            {'DOWN', Monitor, process, Pid, Reason} ->
                error(Reason)
        end
     || {Pid, Monitor} <- Calls
    ].

%% Removes all messages from the mailbox of the caller.
-spec messages() -> [term()].
messages() ->
    receive
        Message -> [Message | messages()]
    after 0 -> []
    end.

%% Waits for the exit signal of a process that is linked to the caller, which traps exits.
-spec exit_reason(pid()) -> term().
exit_reason(Pid) ->
    receive
        {'EXIT', Pid, Reason} -> Reason
    after ?DEADLINE_MS -> error({no_exit_signal, Pid})
    end.

%% Returns the trace messages of a process, in order, up to this call.
-spec traced(pid() | all) -> [tuple()].
traced(Tracee) ->
    Delivered = erlang:trace_delivered(Tracee),
    receive
        {trace_delivered, Tracee, Delivered} -> trace_messages()
    end.

trace_messages() ->
    receive
        Message when element(1, Message) =:= trace -> [Message | trace_messages()]
    after 0 -> []
    end.
