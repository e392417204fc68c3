%% P9: a node that ends while its processes acquire, release and inspect permits ends cleanly: with the requested exit
%% status, without output and without a crash dump.
-module(canal_lock_halt_tests).

-include_lib("eunit/include/eunit.hrl").

-export([busy/1]).

-define(HOLDERS, 300).
-define(CHURNERS, 4).

%% The node grants this many permits before it ends.
-define(GRANTS, 3000).

%% A status that no failure of the VM has.
-define(STATUS, 7).
-define(KEYS, [db, {app, 1}, "string", #{rare => "map"}, <<1:1>>]).

-define(DEADLINE_MS, 60_000).

halt_test_() ->
    [
        {timeout, test_setup:timeout_s(),
            {lists:concat(["P9: a busy node ends cleanly by ", Way, "; schedulers: ", Schedulers]), fun() ->
                [ends(Way, Schedulers) || _ <- lists:seq(1, test_setup:times(1))]
            end}}
     || Way <- [init_stop, signal, halt_at_once, halt_by_a_holder, init_stop_after_a_crash],
        Schedulers <- test_setup:schedulers()
    ].

ends(Way, Schedulers) ->
    Folder = string:trim(os:cmd("mktemp -d")),
    try
        Ended = run(Way, Schedulers, Folder),
        {ok, Files} = file:list_dir(Folder),
        Expected = maps:get(Way, #{signal => 0}, ?STATUS),
        ?assertEqual({{exit_status, Expected}, <<>>, []}, erlang:append_element(Ended, Files))
    after
        ok = file:del_dir_r(Folder)
    end.

run(Way, Schedulers, Folder) ->
    Paths = [filename:absname(Path) || Path <- code:get_path(), filelib:is_dir(Path)],
    Arguments =
        ["-noshell", "-kernel", "logger_level", "none", "-pa" | Paths] ++ test_setup:schedulers(Schedulers) ++
            ["-run", ?MODULE_STRING, "busy", atom_to_list(Way)],
    Port = open_port({spawn_executable, os:find_executable("erl")}, [
        {args, Arguments},
        {cd, Folder},
        {env, [{"ERL_CRASH_DUMP", filename:join(Folder, "erl_crash.dump")}]},
        exit_status,
        stderr_to_stdout,
        binary
    ]),
    await_end(Port, <<>>).

await_end(Port, Output) ->
    receive
        {Port, {data, More}} -> await_end(Port, <<Output/binary, More/binary>>);
        {Port, Status} -> {Status, Output}
    after ?DEADLINE_MS -> error({does_not_end, Output})
    end.

%% Runs in the node that ends.
busy([Way]) ->
    ok = application:load(canal_lock),
    ok = application:set_env(canal_lock, max_per, 3),
    {ok, _} = application:ensure_all_started(canal_lock),
    [spawn(fun hold/0) || _ <- lists:seq(1, ?HOLDERS)],
    [spawn(fun() -> repeat(fun churn/0) end) || _ <- lists:seq(1, ?CHURNERS)],
    spawn(fun() -> repeat(fun inspect/0) end),
    test_await:value(true, fun() -> test_setup:info(granted) >= ?GRANTS end),
    end_by(list_to_atom(Way)).

end_by(init_stop) ->
    init:stop(?STATUS);
end_by(signal) ->
    os:cmd("kill -TERM " ++ os:getpid());
end_by(halt_at_once) ->
    halt(?STATUS, [{flush, false}]);
end_by(halt_by_a_holder) ->
    {acquired, _} = canal_lock:acquire(own, 1, 1),
    halt(?STATUS);
end_by(init_stop_after_a_crash) ->
    exit(whereis(canal_lock), kill),
    init:stop(?STATUS).

hold() ->
    [canal_lock:acquire(Key, ?HOLDERS, 1) || Key <- [{own, self()} | ?KEYS]],
    test_setup:hold_forever().

%% Calls raise `badarg' once the application has stopped.
repeat(Do) ->
    try
        Do()
    catch
        error:badarg -> erlang:yield()
    end,
    repeat(Do).

churn() ->
    [canal_lock:acquire(Key, 2 * ?HOLDERS, 1) || Key <- ?KEYS],
    [canal_lock:release(Key) || Key <- ?KEYS],
    {Child, Monitor} = spawn_monitor(fun() -> canal_lock:acquire(db, 2 * ?HOLDERS, 1) end),
    rand:uniform(2) =:= 1 andalso exit(Child, kill),
    test_await:reason({Child, Monitor}).

inspect() ->
    [canal_lock:keys(), canal_lock:audit(), canal_lock:info(), canal_lock:held()].
