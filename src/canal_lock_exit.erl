%% @private
%% Interprets exit reasons: of processes that end, and of calls that exit.
-module(canal_lock_exit).

-export([is_clean_shutdown/1, call/3]).

%% Whether a process with this exit reason was shut down cleanly.
-spec is_clean_shutdown(Reason :: term()) -> boolean().
is_clean_shutdown(normal) -> true;
is_clean_shutdown(shutdown) -> true;
is_clean_shutdown({shutdown, _}) -> true;
is_clean_shutdown(_) -> false.

%% `gen_server:call/3', but exits with the bare reason: the public function adds its own name and arguments.
-spec call(gen_server:server_ref(), term(), timeout()) -> term().
call(Server, Request, Timeout_ms) ->
    try
        gen_server:call(Server, Request, Timeout_ms)
    catch
        exit:{Reason, {gen_server, call, _}} -> exit(Reason)
    end.
