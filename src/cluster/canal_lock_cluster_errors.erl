%% @private
%% Finds wrong arguments of canal_lock_cluster and explains its errors. See canal_lock_errors, which does the work.
-module(canal_lock_cluster_errors).

-export([wrong/2, explain/1, format_error/2]).

%% The wrong arguments of a call, each with its explanation. Empty if all are right. canal_lock_quorum_config checks the
%% options of start_link/1.
-spec wrong(Function :: atom(), Arguments :: [term()]) -> #{pos_integer() => binary()}.
wrong(child_spec, Arguments) -> canal_lock_errors:wrong_arguments([{"Options", map}], Arguments);
wrong(acquire, [_, _] = Arguments) -> canal_lock_errors:wrong_arguments(limit(), Arguments);
wrong(with_permit, [_, _, _] = Arguments) ->
    canal_lock_errors:wrong_arguments(limit() ++ [{"Fun", {function, 0}}], Arguments);
wrong(Function, Arguments) when Function =/= start_link -> canal_lock_errors:wrong(Function, Arguments);
wrong(_, _) -> #{}.

limit() ->
    [any, {"Limit", count}].

-spec format_error(term(), erlang:stacktrace()) -> #{pos_integer() | general => binary()}.
format_error(_Reason, Stack) ->
    canal_lock_errors:format_error(Stack, fun wrong/2, fun(Cause) -> #{general => explain(Cause)} end).

%% As canal_lock_errors:explain/1.
-spec explain(canal_lock_errors:cause()) -> binary().
explain(not_started) ->
    <<"canal_lock_cluster is not started on this node, or the table of canal_lock is closed: "
      "start the application canal_lock, and canal_lock_cluster in a supervisor">>;
explain(Cause) ->
    canal_lock_errors:explain(Cause).
