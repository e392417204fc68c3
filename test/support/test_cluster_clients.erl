%% Clients that use cluster permits while a test causes faults, and record what they see (test_facts). The quorum locks
%% of the node run already.
%%
%% There are the three kinds of test_quorum_clients. Busy clients compete for permits of a few keys with small limits,
%% one or two at a time. The keeper of a node holds the only permit of a key that no other client wants, until it is
%% lost. The contenders of all nodes compete for the only permit of one key, and hold it for long.
%%
%% In the history a permit is a reader's lock of `{Key, Permits}'. While its session is found held, the permit is
%% certainly valid, because a session that has ended never goes on.
-module(test_cluster_clients).

-export([start/1, stop/0, shut_down/0, granted/0, is_kept/0, has_contended/1, release_contended/0, violations/2]).

-import(test_facts, [now_ns/0, longer/2, note_if_long/3, note_held/3]).

-record(client, {
    kind :: busy | keeper | contender,
    options :: test_quorum_clients:options(),
    file :: file:io_device(),
    request = 1 :: pos_integer()
}).

-define(GRANTED, {?MODULE, granted}).

%% The keeper and the contender that hold their permits, and since when by the wall clock.
-define(HELD, test_cluster_clients_held).

-define(HOT, [{hot, Number} || Number <- [1, 2, 3]]).

%% How long a client waits for the message that its permits are lost, and for all permits at the end.
-define(NOTICE_MS, 60_000).
-define(PAUSE_AFTER_REFUSAL_MS, 20).

limit({hot, Number}) -> Number;
limit(_) -> 1.

-spec start(test_quorum_clients:options()) -> ok.
start(Options = #{busy := Busy}) ->
    ok = persistent_term:put(?GRANTED, counters:new(1, [])),
    _ = [true = unlink(Pid) || Start <- [fun start_table/0, fun start_permits/0], {ok, Pid} <- [Start()]],
    Kinds = [keeper, contender | lists:duplicate(Busy, busy)],
    test_fault_clients:start(?MODULE, Kinds, fun(Kind) -> new(Kind, Options) end, fun take_all/0).

start_table() -> canal_lock:start_link().
start_permits() -> canal_lock_cluster:start_link(#{members => [node()]}).

%% CP3, CP4: when the clients have ended, each node in turn gets all permits of each key.
take_all() ->
    lists:foreach(fun(Key) ->
        Limit = limit(Key),
        {acquired, Limit} = canal_lock_cluster:acquire(Key, Limit, #{permits => Limit, timeout_ms => ?NOTICE_MS}),
        ok = canal_lock_cluster:release(Key, #{permits => Limit})
    end, [contended | ?HOT]).

-spec stop() -> ok.
stop() ->
    test_fault_clients:stop(?MODULE).

%% When the clients of all nodes have ended: members are needed until then.
-spec shut_down() -> ok.
shut_down() ->
    canal_lock_cluster:stop().

-spec granted() -> non_neg_integer().
granted() ->
    counters:get(persistent_term:get(?GRANTED), 1).

-spec is_kept() -> boolean().
is_kept() ->
    ets:member(?HELD, keeper).

-spec has_contended(Since_ms :: integer()) -> boolean().
has_contended(Since_ms) ->
    [] =/= [granted || {contender, _, At_ms} <- ets:lookup(?HELD, contender), At_ms > Since_ms].

-spec release_contended() -> ok.
release_contended() ->
    _ = [Contender ! release || {contender, Contender, _} <- ets:lookup(?HELD, contender)],
    ok.

%% The process that calls this outlives all clients.
new(Kind, Options) ->
    _ = [ets:new(?HELD, [named_table, public]) || ets:whereis(?HELD) =:= undefined],
    spawn_link(fun() -> init(Kind, Options) end).

init(Kind, Options = #{index := Index, start := Start, folder := Folder}) ->
    Id = {Start, Kind, erlang:unique_integer([positive])},
    loop(#client{kind = Kind, options = Options, file = test_facts:open(Folder, {Index, Id})}).

%%% What clients do

%% The pauses vary, so that clients do not take turns in step.
loop(Client = #client{request = Request}) ->
    receive
        stop -> ok
    after rand:uniform(4) - 1 ->
        ok = use(Client),
        loop(Client#client{request = Request + 1})
    end.

use(Client = #client{kind = keeper, options = #{index := Index}}) ->
    with_permits({kept, Index}, 1, infinity, 1, Client);
use(Client = #client{kind = contender, options = #{lease_ms := Lease_ms}}) ->
    with_permits(contended, 1, rand:uniform(2 * Lease_ms), 1, Client);
use(Client = #client{kind = busy}) ->
    Key = lists:nth(rand:uniform(length(?HOT)), ?HOT),
    with_permits(Key, rand:uniform(min(2, limit(Key))), rand:uniform(20), rand:uniform(3) - 1, Client).

with_permits(Key, Permits, For_ms, Pause_ms, Client = #client{kind = Kind, options = Options}) ->
    ok = note({asked, now_ns(), request(Client), read, [{Key, Permits}]}, Client),
    Session = canal_lock_cluster:session(),
    Wait_ms = rand:uniform(3 * maps:get(lease_ms, Options) div 2),
    case acquire(Key, Permits, one_of([0, Wait_ms, Wait_ms, Wait_ms])) of
        {acquired, _} ->
            case canal_lock_cluster:session() of
                Session ->
                    ok = note({granted, now_ns(), request(Client), 0}, Client),
                    counters:add(persistent_term:get(?GRANTED), 1, 1),
                    true = ets:insert(?HELD, {Kind, self(), erlang:system_time(millisecond)}),
                    Used = hold(Session, For_ms, max(Pause_ms, maps:get(pause_ms, Options)), Key, Client),
                    true = ets:delete(?HELD, Kind),
                    finish(Used, Key, Permits, Client);
                _ ->
                    %% It is not known which session it belongs to.
                    ok = canal_lock_cluster:release(Key, #{permits => Permits}),
                    flush(Key)
            end;
        Refusal ->
            ok = note({refused, now_ns(), request(Client), Refusal}, Client),
            timer:sleep(rand:uniform(?PAUSE_AFTER_REFUSAL_MS))
    end.

request(#client{request = Request}) -> Request.

one_of(List) ->
    lists:nth(rand:uniform(length(List)), List).

acquire(Key, 1, 0) -> canal_lock_cluster:acquire(Key, limit(Key));
acquire(Key, Permits, Wait_ms) ->
    canal_lock_cluster:acquire(Key, limit(Key), #{permits => Permits, timeout_ms => Wait_ms}).

%% Checks repeatedly whether the session is held, for this time.
hold(Session, For_ms, Pause_ms, Key, Client) ->
    Until = case For_ms of infinity -> infinity; _ -> now_ns() + For_ms * 1_000_000 end,
    check(Session, Until, Pause_ms, none, Key, Client).

check(Session, Until, Pause_ms, Span, Key, Client) ->
    Before = now_ns(),
    case is_held(Session) of
        true when Before > Until ->
            ok = note_held(longer(Before, Span), request(Client), Client#client.file),
            over;
        true ->
            Longer = note_if_long(longer(Before, Span), request(Client), Client#client.file),
            receive
                {canal_lock_cluster, lost, Key} ->
                    ok = note_held(Longer, request(Client), Client#client.file),
                    lost(Client);
                release ->
                    ok = note_held(Longer, request(Client), Client#client.file),
                    over;
                stop ->
                    ok = note_held(Longer, request(Client), Client#client.file),
                    self() ! stop,
                    over
            after Pause_ms -> check(Session, Until, Pause_ms, Longer, Key, Client)
            end;
        false ->
            ok = note_held(Span, request(Client), Client#client.file),
            ok = note({not_held, Before, now_ns(), request(Client)}, Client),
            receive
                {canal_lock_cluster, lost, Key} -> lost(Client)
            after ?NOTICE_MS -> exit({no_message, Key})
            end
    end.

lost(Client) ->
    ok = note({lost, now_ns(), request(Client)}, Client),
    lost.

%% The native library raises after the locks of the node were stopped.
is_held(Session) ->
    try
        canal_lock_quorum:is_held(Session)
    catch
        error:badarg -> false
    end.

finish(Used, Key, Permits, Client = #client{kind = Kind}) ->
    _ = [exit(died_on_purpose) || Kind =:= busy, rand:uniform(7) =:= 1, note({dying, now_ns()}, Client) =:= ok],
    ok = note({unlocking, now_ns(), request(Client), release}, Client),
    ok = canal_lock_cluster:release(Key, #{permits => Permits}),
    ok = note({unlocked, now_ns(), request(Client), ok}, Client),
    _ = [ok = flush(Key) || Used =:= over],
    ok.

%% A message can have been sent before the release.
flush(Key) ->
    receive
        {canal_lock_cluster, lost, Key} -> flush(Key);
        release -> flush(Key)
    after 0 -> ok
    end.

note(Fact, #client{file = File}) ->
    test_facts:note(Fact, File).

%%% The judge

%% What test_quorum_history finds, and CP1. A node that is cut off grants permits until its session ends.
-spec violations(test_quorum_history:history(), Lease_ms :: pos_integer()) -> [test_quorum_history:violation()].
violations(History = #{known := Known}, Lease_ms) ->
    Session_ns = Lease_ms * 1_000_000 * 4 div 5,
    Later = [
        case Fact of
            {no_grants, Index, From, Until} -> {no_grants, Index, From + Session_ns, Until};
            _ -> Fact
        end
     || Fact <- Known
    ],
    Spans = [
        {Key, {Granted, Permits}, {Last, -Permits}}
     || #{names := [{Key, Permits}], granted := Granted, certainly_held_until := Last} <-
            test_quorum_history:locks(History),
        Last =/= never
    ],
    test_quorum_history:violations(History#{known := Later}) ++
        lists:append([
            above(Key, limit(Key), lists:sort(lists:append([[From, To] || {K, From, To} <- Spans, K =:= Key])))
         || Key <- lists:usort([Key || {Key, _, _} <- Spans])
        ]).

%% Ends are before beginnings at the same time.
above(Key, Limit, Changes) ->
    {_, Wrong} = lists:foldl(
        fun({At, Change}, {Before, Found}) ->
            Used = Before + Change,
            {Used, [{cp1_exact, {Key, At, Used, Limit}} || Used > Limit] ++ Found}
        end,
        {0, []},
        Changes
    ),
    Wrong.
