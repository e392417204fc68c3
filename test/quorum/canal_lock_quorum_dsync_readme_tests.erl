%% The two programs in the README of minio's dsync. They have to say the same things in the same order here.
%%
%% What another goroutine gives back there, another process gives back here. It says so before it does, so that the
%% one that waits for it cannot be heard first. Then the same once more, with each lock on a node of its own.
-module(canal_lock_quorum_dsync_readme_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_quorum_cluster, [worker/1, order/2, send_order/2, lock/3, rlock/3, unlock/2]).

-define(LONG_MS, 15_000).

%% A second of the programs takes so long here.
-define(SECOND_MS, 100).

programs_test_() ->
    test_quorum_cluster:tests(3, [
        {"an exclusive lock, in one process", fun exclusive_program/1},
        {"an exclusive lock, on two nodes", fun exclusive_on_nodes/1},
        {"two read locks and a writer, in one process", fun read_program/1},
        {"two read locks and a writer, on three nodes", fun read_on_nodes/1}
    ]).

exclusive_program([A | _]) ->
    Said = order(worker(A), fun() ->
        Main = self(),
        Say = fun(What) -> Main ! {said, What} end,
        {ok, First} = canal_lock_quorum:lock(test, ?LONG_MS),
        Say("first lock granted"),
        _ = spawn_link(fun() ->
            timer:sleep(5 * ?SECOND_MS),
            Say("first lock unlocked"),
            ok = canal_lock_quorum:unlock(First)
        end),
        Say("about to lock same resource again..."),
        {ok, Second} = canal_lock_quorum:lock(test, ?LONG_MS),
        Say("second lock granted"),
        timer:sleep(2 * ?SECOND_MS),
        ok = canal_lock_quorum:unlock(Second),
        said()
    end),
    ?assertEqual(exclusive_says(), Said).

exclusive_on_nodes([A, B | _]) ->
    {One, Other} = {worker(A), worker(B)},
    {ok, _} = lock(One, test, ?LONG_MS),
    Granted = order(One, fun() -> says("first lock granted") end),
    Again = send_order(Other, fun() ->
        About = says("about to lock same resource again..."),
        {ok, _} = canal_lock_quorum:lock(test, ?LONG_MS),
        [About, says("second lock granted")]
    end),
    Unlocked = order(One, fun() ->
        timer:sleep(5 * ?SECOND_MS),
        says("first lock unlocked")
    end),
    ok = unlock(One, test),
    Said = [Granted, Unlocked | test_await:answer(Again)],
    ?assertEqual(exclusive_says(), in_order(Said)).

exclusive_says() ->
    ["first lock granted", "about to lock same resource again...", "first lock unlocked", "second lock granted"].

read_program([A | _]) ->
    Said = order(worker(A), fun() ->
        Main = self(),
        Say = fun(What) -> Main ! {said, What} end,
        Release = fun(Lock, Seconds, What) ->
            spawn_link(fun() ->
                timer:sleep(Seconds * ?SECOND_MS),
                Say(What),
                ok = canal_lock_quorum:unlock(Lock)
            end)
        end,
        {ok, First} = canal_lock_quorum:rlock(resource, ?LONG_MS),
        Say("1st read lock acquired"),
        {ok, Second} = canal_lock_quorum:rlock(resource, ?LONG_MS),
        Say("2nd read lock acquired"),
        _ = Release(First, 1, "1st read lock released"),
        _ = Release(Second, 2, "2nd read lock released"),
        Say("trying to acquire write lock"),
        {ok, Write} = canal_lock_quorum:lock(resource, ?LONG_MS),
        Say("write lock acquired"),
        timer:sleep(3 * ?SECOND_MS),
        ok = canal_lock_quorum:unlock(Write),
        said()
    end),
    ?assertEqual(read_says(), Said).

read_on_nodes([A, B, C]) ->
    Readers = [worker(A), worker(B)],
    Writer = worker(C),
    Acquired = [
        begin
            {ok, _} = rlock(Reader, resource, ?LONG_MS),
            order(Reader, fun() -> says(Number ++ " read lock acquired") end)
        end
     || {Reader, Number} <- lists:zip(Readers, ["1st", "2nd"])
    ],
    Writing = send_order(Writer, fun() ->
        Trying = says("trying to acquire write lock"),
        {ok, _} = canal_lock_quorum:lock(resource, ?LONG_MS),
        [Trying, says("write lock acquired")]
    end),
    Releasing = [
        send_order(Reader, fun() ->
            timer:sleep(Seconds * ?SECOND_MS),
            Released = says(Number ++ " read lock released"),
            ok = canal_lock_quorum:unlock(get({lock, resource})),
            [Released]
        end)
     || {Reader, Number, Seconds} <- lists:zip3(Readers, ["1st", "2nd"], [1, 2])
    ],
    Said = [test_await:answer(Ref) || Ref <- [Writing | Releasing]],
    ?assertEqual(read_says(), in_order(Acquired ++ lists:append(Said))).

read_says() ->
    ["1st read lock acquired", "2nd read lock acquired", "trying to acquire write lock"] ++
        ["1st read lock released", "2nd read lock released", "write lock acquired"].

%% To the process itself.
said() ->
    receive
        {said, What} -> [What | said()]
    after 0 -> []
    end.

%% For when it is said on several nodes: they have a clock in common.
says(What) ->
    {canal_lock_quorum_nif:now(), What}.

in_order(Said) ->
    [What || {_, What} <- lists:sort(Said)].
