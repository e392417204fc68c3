%% @private
%% What is wrong with a call, in words (EEP 54): the shell and Elixir ask {@link format_error/2} when they show an
%% error.
%%
%% The arguments are looked at again only then, so that what is right pays nothing for it.
-module(canal_lock_errors).

-export([is_cause/1, reason/1, arguments/2, explain/1, faults/2, format_error/2]).

-export_type([cause/0]).

-type cause() :: badarg | not_started | system_limit | not_watched | nif_panicked | version_mismatch.

%% Timers of the VM take no longer ones in all releases.
-define(MAX_INTERVAL_MS, 16#ffffffff).

-spec is_cause(term()) -> boolean().
is_cause(Reason) ->
    lists:member(Reason, [badarg, not_started, system_limit, not_watched, nif_panicked, version_mismatch]).

%% What to raise.
-spec reason(cause()) -> badarg | system_limit | not_watched | nif_panicked | version_mismatch.
reason(not_started) -> badarg;
reason(Cause) -> Cause.

%% What to show of the arguments. A key that is too large may be a small term with shared parts; but not to the VM,
%% which copies an error for each link and monitor of who dies of it, and not to those who print it.
-spec arguments(cause(), [term()]) -> [term()] | none.
arguments(system_limit, _Arguments) -> none;
arguments(_Cause, Arguments) -> Arguments.

-spec format_error(term(), erlang:stacktrace()) -> #{pos_integer() | general => binary()}.
format_error(_Reason, [{_Module, Function, Arguments, Info} | _]) ->
    case proplists:get_value(error_info, Info, #{}) of
        #{cause := badarg} when is_list(Arguments) -> faults(Function, Arguments);
        #{cause := Cause} when Cause =/= badarg -> #{general => explain(Cause)};
        _ -> #{}
    end.

%% Of any cause but a wrong argument.
-spec explain(not_started | system_limit | not_watched | nif_panicked | version_mismatch) -> binary().
explain(not_started) ->
    <<"canal_lock is not started: there is no manager, and no table that one has kept">>;
explain(system_limit) ->
    <<"no memory, or a key of more than half a gigabyte; nothing has changed">>;
explain(not_watched) ->
    <<"the VM would not watch the calling process; nothing has changed">>;
explain(nif_panicked) ->
    <<"a bug in the native library of canal_lock; please report it">>;
explain(version_mismatch) ->
    <<"the other node runs another version of canal_lock: calls between nodes need the same version on both">>.

%% Which arguments are wrong, and why; none if the call may be made.
-spec faults(Function :: atom(), Arguments :: [term()]) -> #{pos_integer() => binary()}.
faults(Function, Arguments) ->
    Numbered = lists:zip3(lists:seq(1, length(Arguments)), wanted(Function, length(Arguments)), Arguments),
    maps:from_list([{N, Fault} || {N, Wanted, Argument} <- Numbered, Fault <- fault(Wanted, Argument)]).

wanted(start_link, 1) -> [positive];
wanted(start_link, 2) -> [positive, options];
wanted(child_spec, 1) -> [child];
wanted(acquire, 3) -> [any, count, count];
wanted(release, 3) -> [any, count, count];
wanted(with_permit, 4) -> [any, count, count, action];
wanted(buckets, 2) -> [any, positive];
wanted(held, 1) -> [pid];
wanted(acquire_on, 4) -> [node, any, count, count];
wanted(release_on, 2) -> [node, any];
wanted(top, 1) -> [view_options];
wanted(_, Arity) -> lists:duplicate(Arity, any).

fault(any, _) -> [];
fault(options, Options) -> options_fault([keep_on_crash, sweep_interval_ms], Options);
fault(view_options, Options) -> options_fault([interval_ms, rows, show], Options);
fault(child, {MaxPer, Options}) -> lists:sublist(fault(positive, MaxPer) ++ fault(options, Options), 1);
fault(Wanted, Argument) -> [Fault || {false, Fault} <- [check(Wanted, Argument)]].

%% Whether an argument, or the value of an option, is right; and what is said of one that is not.
check(positive, N) -> {is_positive(N), <<"not a positive integer">>};
check(child, N) -> {is_positive(N), <<"neither MaxPer, a positive integer, nor {MaxPer, Options}">>};
check(count, N) -> {is_integer(N) andalso N >= 0, <<"not a non-negative integer">>};
check(action, Fun) -> {is_function(Fun, 0), <<"not a function of no arguments">>};
check(pid, Pid) -> {is_pid(Pid), <<"not a pid">>};
check(node, Node) -> {is_atom(Node), <<"not the name of a node, which is an atom">>};
check(keep_on_crash, Keep) -> {is_boolean(Keep), <<"keep_on_crash is neither true nor false">>};
check(rows, Rows) -> {is_positive(Rows), <<"rows is not a positive integer">>};
check(show, Show) -> {is_function(Show, 1), <<"show is not a function of one argument">>};
check(Interval_ms, Ms) ->
    Fault = <<(atom_to_binary(Interval_ms))/binary, " is not a positive integer below 2^32, in milliseconds">>,
    {is_positive(Ms) andalso Ms =< ?MAX_INTERVAL_MS, Fault}.

is_positive(N) -> is_integer(N) andalso N > 0.

%% The first one.
options_fault(Known, Options) when is_map(Options) ->
    Faults = [option_fault(Option, Known) || Option <- lists:sort(maps:to_list(Options))],
    lists:sublist(lists:append(Faults), 1);
options_fault(_, _) ->
    [<<"not a map of options">>].

option_fault({Name, Value}, Known) ->
    case lists:member(Name, Known) of
        true -> fault(Name, Value);
        false -> [unicode:characters_to_binary(io_lib:format("no such option: ~0tP", [Name, 10]))]
    end.
