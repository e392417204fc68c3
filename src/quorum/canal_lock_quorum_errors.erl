%% @private
%% Finds wrong arguments of canal_lock_quorum and explains its errors. See canal_lock_errors, which does the work.
-module(canal_lock_quorum_errors).

-export([wrong/2, explain/1, format_error/2]).

%% The wrong arguments of a call, each with its explanation. Empty if all are right. canal_lock_quorum_config checks the
%% options of start_link/1.
-spec wrong(Function :: atom(), Arguments :: [term()]) -> #{pos_integer() => binary()}.
wrong(Function, Arguments) ->
    canal_lock_errors:wrong_arguments(expected(Function), Arguments).

expected(start_link) -> [any];
expected(child_spec) -> [{"Options", map}];
expected(lock) -> [{"Name", fun name/1}, {"Timeout_ms", timeout}];
expected(rlock) -> expected(lock);
expected(lock_many) -> [{"Names", fun names/1}, {"Timeout_ms", timeout}];
expected(rlock_many) -> expected(lock_many);
expected(with_lock) -> expected(lock) ++ [{"Fun", {function, 1}}];
expected(with_rlock) -> expected(with_lock);
expected(Function) when Function =:= holder; Function =:= waiting; Function =:= force_unlock -> [{"Name", fun name/1}];
expected(Function) when Function =:= status; Function =:= locks -> [];
expected(top) -> [{"Options", {options, canal_lock_errors:view_options()}}];
expected(_) -> [{"Lock", fun lock/1}].

name(Name) -> encoded(canal_lock_quorum_names:encode(Name)).
names(Names) -> encoded(canal_lock_quorum_names:encode_all(Names)).

encoded({ok, _}) -> {true, ""};
encoded({error, Must}) -> {false, Must}.

lock(Lock) -> {canal_lock_quorum_lock:is_lock(Lock), "be a lock that lock/2 or another call has returned"}.

-spec format_error(term(), erlang:stacktrace()) -> #{pos_integer() | general => binary()}.
format_error(_Reason, Stack) ->
    canal_lock_errors:format_error(Stack, fun wrong/2, fun texts/1).

texts(foreign_lock) -> #{1 => <<"Lock must be a lock of this node">>};
texts(Cause) -> #{general => explain(Cause)}.

%% As canal_lock_errors:explain/1.
-spec explain(canal_lock_errors:cause()) -> binary().
explain(not_started) ->
    <<"canal_lock_quorum is not started on this node: "
      "call canal_lock_quorum:start_link/1, or start it in a supervisor">>;
explain(Cause) ->
    canal_lock_errors:explain(Cause).
