%% P9: a node that ends while permits are held, taken, given and looked at ends as it would without us: with the status
%% that it is told to end with, without a word, and without a dump.
-module(canal_lock_halt_tests).

-include_lib("eunit/include/eunit.hrl").

-export([busy/1]).

-define(HOLDERS, 300).
-define(CHURNERS, 4).

%% Before it ends.
-define(GRANTS, 3000).

%% What it ends with when it is told to, not by any mishap.
-define(STATUS, 7).
-define(KEYS, [db, {app, 1}, "string", #{rare => "map"}, <<1:1>>]).

-define(DEADLINE_MS, 60_000).

halt_test_() ->
    [
        {timeout, 2 * test_setup:times(?DEADLINE_MS) div 1000,
            {lists:concat(["P9: a busy node ends by ", Way, "; schedulers: ", Schedulers]), fun() ->
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
        Expected =
            case Way of
                signal -> 0;
                _ -> ?STATUS
            end,
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
    ended(Port, <<>>).

ended(Port, Said) ->
    receive
        {Port, {data, More}} -> ended(Port, <<Said/binary, More/binary>>);
        {Port, Status} -> {Status, Said}
    after ?DEADLINE_MS -> error({does_not_end, Said})
    end.

%% In the node that is to end.
busy([Way]) ->
    ok = application:load(canal_lock),
    ok = application:set_env(canal_lock, max_per, 3),
    {ok, _} = application:ensure_all_started(canal_lock),
    [spawn(fun hold/0) || _ <- lists:seq(1, ?HOLDERS)],
    [spawn(fun() -> again(fun churn/0) end) || _ <- lists:seq(1, ?CHURNERS)],
    spawn(fun() -> again(fun look/0) end),
    test_await:value(true, fun() -> maps:get(granted, canal_lock:info()) >= ?GRANTS end),
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
    receive
    after infinity -> ok
    end.

%% When the application has stopped there is no table any more.
again(Do) ->
    try
        Do()
    catch
        error:badarg -> erlang:yield()
    end,
    again(Do).

churn() ->
    [canal_lock:acquire(Key, 2 * ?HOLDERS, 1) || Key <- ?KEYS],
    [canal_lock:release(Key) || Key <- ?KEYS],
    {Child, Monitor} = spawn_monitor(fun() -> canal_lock:acquire(db, 2 * ?HOLDERS, 1) end),
    rand:uniform(2) =:= 1 andalso exit(Child, kill),
    test_await:reason({Child, Monitor}).

look() ->
    [canal_lock:keys(), canal_lock:audit(), canal_lock:info(), canal_lock:held()].
