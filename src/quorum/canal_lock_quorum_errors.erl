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
expected(change_members) -> [{"Members", fun members/1}];
expected(reset_members) -> [{"Members", fun members_with_this_node/1}];
expected(top) -> [{"Options", {options, canal_lock_errors:view_options()}}];
expected(_) -> [{"Lock", fun lock/1}].

members(Members) ->
    case canal_lock_quorum_config:wrong_members(Members) of
        none -> {true, ""};
        Must -> {false, Must}
    end.

members_with_this_node(Members) ->
    case members(Members) of
        {true, _} -> {lists:member(node(), Members), ["contain this node, ", atom_to_list(node())]};
        Wrong -> Wrong
    end.

name(Name) -> encoded(canal_lock_quorum_names:encode(Name)).
names(Names) -> encoded(canal_lock_quorum_names:encode_all(Names)).

encoded({ok, _}) -> {true, ""};
encoded({error, Must}) -> {false, Must}.

lock(Lock) -> {canal_lock_quorum_lock:is_lock(Lock), "be a lock that lock/2 or another call has returned"}.

-spec format_error(term(), erlang:stacktrace()) -> #{pos_integer() | general => binary()}.
format_error(_Reason, Stack) ->
    canal_lock_errors:format_error(Stack, fun wrong/2, fun texts/1).

texts(no_voter) ->
    #{general => <<"this node is a client without a voter (option voter): call this function on a member">>};
texts(foreign_lock) -> #{1 => <<"Lock must be a lock of this node">>};
texts(Cause) -> #{general => explain(Cause)}.

%% As canal_lock_errors:explain/1.
-spec explain(canal_lock_errors:cause()) -> binary().
explain(not_started) ->
    <<"canal_lock_quorum is not started on this node: "
      "call canal_lock_quorum:start_link/1, or start it in a supervisor">>;
explain(Cause) ->
    canal_lock_errors:explain(Cause).
