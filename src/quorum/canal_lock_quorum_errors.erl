%% @private
%% What is wrong with a call of canal_lock_quorum, and how the shell explains it (`error_info', EEP 54).
-module(canal_lock_quorum_errors).

-export([faults/2, format_error/2]).

%% No timer of the VM takes more.
-define(MAX_MS, 16#ffffffff).

%% Which arguments are wrong, and why; none if the call may be made.
-spec faults(Function :: atom(), Arguments :: [term()]) -> #{pos_integer() => binary()}.
faults(Function, Arguments) ->
    Numbered = lists:zip3(lists:seq(1, length(Arguments)), wanted(Function), Arguments),
    maps:from_list([{N, Fault} || {N, Wanted, Argument} <- Numbered, Fault <- fault(Wanted, Argument)]).

wanted(start_link) -> [options];
wanted(child_spec) -> [map];
wanted(lock) -> [name, timeout];
wanted(rlock) -> [name, timeout];
wanted(lock_many) -> [names, timeout];
wanted(with_lock) -> [name, timeout, action];
wanted(force_unlock) -> [name];
wanted(Function) when Function =:= status; Function =:= locks -> [];
wanted(_) -> [lock].

fault(options, Options) ->
    %% It knows the rules. Why it does not load, is for start_link/1 to tell.
    case canal_lock_quorum_nif:load() =:= ok andalso canal_lock_quorum_config:fault(Options) of
        Fault when is_binary(Fault) -> [Fault];
        _ -> []
    end;
fault(name, Name) -> [Fault || {error, Fault} <- [canal_lock_quorum_names:encode(Name)]];
fault(names, Names) -> [Fault || {error, Fault} <- [canal_lock_quorum_names:encode_all(Names)]];
fault(Wanted, Argument) -> [Fault || {false, Fault} <- [check(Wanted, Argument)]].

%% Whether an argument is right; and what is said of one that is not.
check(map, Options) -> {is_map(Options), <<"not a map of options">>};
check(timeout, Ms) ->
    IsMs = is_integer(Ms) andalso Ms >= 0 andalso Ms =< ?MAX_MS,
    {IsMs, <<"not a non-negative integer below 2^32, in milliseconds">>};
check(action, Fun) -> {is_function(Fun, 1), <<"not a function of one argument, which is the lock">>};
check(lock, Lock) ->
    {canal_lock_quorum_lock:is_lock(Lock), <<"not a lock, as lock/2, rlock/2 or lock_many/2 answers it">>}.

-spec format_error(term(), erlang:stacktrace()) -> #{pos_integer() | general => binary()}.
format_error(_Reason, [{_Module, Function, Arguments, Info} | _]) ->
    case proplists:get_value(error_info, Info, #{}) of
        #{cause := badarg} when is_list(Arguments) -> faults(Function, Arguments);
        #{cause := not_started} -> #{general => <<"canal_lock_quorum is not started on this node">>};
        #{cause := not_of_this_node} -> #{1 => <<"a lock of another node, or of an earlier life of this one">>};
        _ -> #{}
    end.
