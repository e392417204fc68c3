%% @private
%% What the processes of the agent and of the voter do alike. They gather what comes, and make a step of it when the
%% mailbox is empty or when there is enough for one; and a step tells when the next one is due.
-module(canal_lock_quorum_steps).

-export([noreply/2, add_timer/2, is_orderly/1]).

-export_type([timer/0]).

%% When a step is due that nothing else causes.
-type timer() :: none | {reference(), At_ms :: integer()}.

%% The answer of a callback. With anything gathered, `timeout' comes as soon as the mailbox is empty.
-spec noreply(Gathered :: [term()], State) -> {noreply, State} | {noreply, State, 0}.
noreply([], State) -> {noreply, State};
noreply(_, State) -> {noreply, State, 0}.

%% Timers are set anew only for what is due earlier. One that comes too early finds out what is due next.
-spec add_timer(non_neg_integer() | infinity, timer()) -> timer().
add_timer(infinity, Timer) ->
    Timer;
add_timer(Wait_ms, Timer) ->
    At_ms = erlang:monotonic_time(millisecond) + Wait_ms,
    case Timer of
        {_, Earlier_ms} when Earlier_ms =< At_ms ->
            Timer;
        {Later, _} ->
            _ = erlang:cancel_timer(Later, [{async, true}, {info, false}]),
            {erlang:start_timer(Wait_ms, self(), step), At_ms};
        none ->
            {erlang:start_timer(Wait_ms, self(), step), At_ms}
    end.

%% Whether a process ends because somebody wants it to.
-spec is_orderly(term()) -> boolean().
is_orderly(normal) -> true;
is_orderly(shutdown) -> true;
is_orderly({shutdown, _}) -> true;
is_orderly(_) -> false.
