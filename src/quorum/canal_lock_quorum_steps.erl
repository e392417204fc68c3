%% @private
%% Code that the processes of the agent and of the voter share. Both collect events, and run a step when the mailbox is
%% empty or enough events are collected. Each step returns when the next one is due.
-module(canal_lock_quorum_steps).

-export([ask/2, noreply/2, add_timer/2]).

-export_type([timer/0]).

%% The timer of the next step that is due without an event.
-type timer() :: none | {reference(), At_ms :: integer()}.

%% As for `gen_server:call/2'. (Tests set another time in the environment of the application.)
-define(ANSWER_MS, 5000).

%% Reads the state of one of the processes. Exits with `timeout' if the process hangs.
-spec ask(canal_lock_quorum_agent | canal_lock_quorum_voter, term()) -> term().
ask(Process, Request) ->
    canal_lock_exit:call(Process, Request, application:get_env(canal_lock, answer_ms, ?ANSWER_MS)).

%% The answer of a callback. If there are events, `timeout' comes as soon as the mailbox is empty. (`message_queue_len'
%% does not show that: it leaves out messages that came after the process looked for one.)
-spec noreply(Events :: [term()], State) -> {noreply, State} | {noreply, State, 0}.
noreply([], State) -> {noreply, State};
noreply(_, State) -> {noreply, State, 0}.

%% Replaces the timer only if the step is due earlier. If a timer fires too early, the step says when the next one is
%% due.
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
