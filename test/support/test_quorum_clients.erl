%% Clients that use quorum locks while a test causes faults, and record what they see (test_facts), for
%% test_quorum_history.
%%
%% There are three kinds of clients. Busy clients compete for a few names, as writers, as readers and for several names
%% at once. They hold a lock for milliseconds, add to the numbers of test_quorum_register, and end a lock in all ways.
%% The keeper of a node holds a name that no other client wants until it loses it: so each node always has a lock to
%% lose. The contenders of all nodes compete for one name and hold it for long. When the node of the holder is cut off,
%% another contender gets the lock at the moment at which a fault of the protocol would show.
-module(test_quorum_clients).

-export([start/1, stop/0, shut_down/0, granted/0, is_kept/0, has_contended/1, release_contended/0, violations/2]).

-export_type([options/0]).

%% `start': differs between the clients of a node before and after a restart. A client waits for a lock for at most 1.5
%% times `lease_ms', and a contender holds it for at most twice that time. `pause_ms': the shortest pause between two
%% checks of a held lock.
-type options() :: #{
    index := pos_integer(),
    start := pos_integer(),
    folder := file:filename(),
    register := file:filename(),
    busy := pos_integer(),
    pause_ms := non_neg_integer(),
    lease_ms := pos_integer()
}.

-import(test_facts, [now_ns/0, longer/2, note_if_long/3, note_held/3]).

-record(client, {
    kind :: busy | keeper | contender,
    options :: options(),
    file :: file:io_device(),
    register :: test_quorum_register:connection(),
    request = 1 :: pos_integer()
}).

-define(GRANTED, {?MODULE, granted}).

%% The names of the busy clients: few, so that they compete.
-define(BUSY_NAMES, [{hot, Number} || Number <- lists:seq(1, 4)]).
-define(CONTENDED, contended_lock).

%% How long a client waits for the message that a lock which it does not hold is lost.
-define(NOTICE_MS, 120_000).

-define(PAUSE_AFTER_REFUSAL_MS, 20).

-spec start(options()) -> ok.
start(Options = #{busy := Busy}) ->
    ok = persistent_term:put(?GRANTED, counters:new(1, [])),
    Kinds = [keeper, contender | lists:duplicate(Busy, busy)],
    test_fault_clients:start(?MODULE, Kinds, fun(Kind) -> new(Kind, Options) end, fun() -> ok end).

-spec stop() -> ok.
stop() ->
    test_fault_clients:stop(?MODULE).

-spec shut_down() -> ok.
shut_down() ->
    ok.

%% How many locks clients of this node have been granted.
-spec granted() -> non_neg_integer().
granted() ->
    counters:get(persistent_term:get(?GRANTED), 1).

%% Whether the keeper of this node holds its lock.
-spec is_kept() -> boolean().
is_kept() ->
    [] =/= [kept || #{names := [{kept, _}], held := true} <- canal_lock_quorum_lock_table:infos()].

%% Whether the contender of this node has the contended lock and was granted it after this time of the wall clock.
-spec has_contended(Since_ms :: integer()) -> boolean().
has_contended(Since_ms) ->
    [] =/= [granted || #{since_ms := At_ms} <- contended(), At_ms > Since_ms].

%% If the contender of this node has the contended lock, it unlocks it.
-spec release_contended() -> ok.
release_contended() ->
    _ = [Contender ! release || #{holder := Contender} <- contended()],
    ok.

contended() ->
    [Lock || Lock = #{names := [?CONTENDED]} <- canal_lock_quorum_lock_table:infos()].

-spec violations(test_quorum_history:history(), Lease_ms :: pos_integer()) -> [test_quorum_history:violation()].
violations(History, _Lease_ms) ->
    test_quorum_history:violations(History).

new(Kind, Options) ->
    spawn_link(fun() -> init(Kind, Options) end).

init(Kind, Options = #{index := Index, start := Start, folder := Folder, register := Register}) ->
    Id = {Start, Kind, erlang:unique_integer([positive])},
    File = test_facts:open(Folder, {Index, Id}),
    Client = #client{kind = Kind, options = Options, file = File, register = test_quorum_register:connect(Register)},
    loop(Client).

%%% What clients do

%% The pauses vary, so that clients do not take turns in step.
loop(Client = #client{kind = Kind, request = Request}) ->
    receive
        stop -> ok
    after rand:uniform(4) - 1 ->
        ok = use_lock(Kind, Client),
        loop(Client#client{request = Request + 1})
    end.

use_lock(keeper, Client = #client{options = #{index := Index}}) ->
    with_lock(write, [{kept, Index}], Client, fun(Lock) -> hold(Lock, infinity, 1, Client) end);
use_lock(contender, Client = #client{options = #{lease_ms := Lease_ms}}) ->
    with_lock(write, [?CONTENDED], Client, fun(Lock) -> hold(Lock, rand:uniform(2 * Lease_ms), 1, Client) end);
use_lock(busy, Client) ->
    Shortly = fun(Lock) -> hold_shortly(Lock, Client) end,
    case rand:uniform(20) of
        Few when Few =< 6 -> with_lock(read, [one_of(?BUSY_NAMES)], Client, Shortly);
        Few when Few =< 9 -> with_lock(write, several(?BUSY_NAMES), Client, Shortly);
        _ -> with_lock(write, [one_of(?BUSY_NAMES)], Client, fun(Lock) -> add(Lock, Client), Shortly(Lock) end)
    end.

one_of(List) ->
    lists:nth(rand:uniform(length(List)), List).

several(Names) ->
    Shuffled = [Name || {_, Name} <- lists:sort([{rand:uniform(), Name} || Name <- Names])],
    lists:sublist(Shuffled, 1 + rand:uniform(2)).

%% Sometimes without a pause between the checks.
hold_shortly(Lock, Client) ->
    hold(Lock, rand:uniform(20), rand:uniform(3) - 1, Client).

add(Lock, #client{register = Register}) ->
    [Name] = canal_lock_quorum_lock:names(Lock),
    _ = test_quorum_register:add_fenced(Register, Name, canal_lock_quorum:fence(Lock)),
    _ = test_quorum_register:add_plain(Register, Name, fun() -> is_held(Lock) end).

with_lock(Mode, Names, Client = #client{request = Request, options = #{lease_ms := Lease_ms}}, Use) ->
    ok = note({asked, now_ns(), Request, Mode, Names}, Client),
    case lock(Mode, Names, rand:uniform(3 * Lease_ms div 2)) of
        {ok, Lock} ->
            ok = note({granted, now_ns(), Request, canal_lock_quorum:fence(Lock)}, Client),
            counters:add(persistent_term:get(?GRANTED), 1, 1),
            finish(Use(Lock), Lock, Client);
        {error, Reason} ->
            ok = note({refused, now_ns(), Request, Reason}, Client),
            %% Without a quorum a request is refused at once; its client must not keep a processor busy.
            timer:sleep(rand:uniform(?PAUSE_AFTER_REFUSAL_MS))
    end.

lock(Mode, Names, Timeout_ms) ->
    answer_or_error(fun() ->
        case {Mode, Names} of
            {read, [Name]} -> canal_lock_quorum:rlock(Name, Timeout_ms);
            {write, [Name]} -> canal_lock_quorum:lock(Name, Timeout_ms);
            {write, _} -> canal_lock_quorum:lock_many(Names, Timeout_ms)
        end
    end).

%% A fault may kill the process that should answer, or stop the locks of the node.
answer_or_error(Call) ->
    try
        Call()
    catch
        exit:{Reason, {canal_lock_quorum, _, _}} -> {error, {exit, Reason}};
        error:badarg -> {error, not_started}
    end.

%% Checks repeatedly whether the lock is held, for this time.
hold(Lock, For_ms, Pause_ms, Client = #client{options = #{pause_ms := Least_ms}}) ->
    Now = now_ns(),
    Until =
        case For_ms of
            infinity -> infinity;
            _ -> Now + For_ms * 1_000_000
        end,
    check(Lock, Until, max(Pause_ms, Least_ms), none, Client).

check(Lock, Until, Pause_ms, Span, Client = #client{request = Request}) ->
    Before = now_ns(),
    case is_held(Lock) of
        true when Before > Until ->
            ok = note_held(longer(Before, Span), Request, Client#client.file),
            over;
        true ->
            Longer = note_if_long(longer(Before, Span), Request, Client#client.file),
            receive
                {canal_lock_quorum, at_risk, Lock} ->
                    ok = note({at_risk, now_ns(), Request}, Client),
                    check(Lock, Until, Pause_ms, Longer, Client);
                {canal_lock_quorum, lost, Lock} ->
                    ok = note_held(Longer, Request, Client#client.file),
                    lost(Lock, Client);
                release ->
                    ok = note_held(Longer, Request, Client#client.file),
                    over;
                stop ->
                    ok = note_held(Longer, Request, Client#client.file),
                    self() ! stop,
                    over
            after Pause_ms -> check(Lock, Until, Pause_ms, Longer, Client)
            end;
        false ->
            ok = note_held(Span, Request, Client#client.file),
            ok = note({not_held, Before, now_ns(), Request}, Client),
            await_lost(Lock, Client)
    end.

await_lost(Lock, Client = #client{request = Request}) ->
    receive
        {canal_lock_quorum, at_risk, Lock} ->
            ok = note({at_risk, now_ns(), Request}, Client),
            await_lost(Lock, Client);
        {canal_lock_quorum, lost, Lock} ->
            lost(Lock, Client)
    after ?NOTICE_MS -> lost
    end.

lost(Lock, Client = #client{request = Request}) ->
    ok = note({lost, now_ns(), Request}, Client),
    ok = check_once(Lock, Client),
    lost.

%% The lock has ended; the judge finds a check that says otherwise.
check_once(Lock, Client = #client{request = Request}) ->
    Before = now_ns(),
    case is_held(Lock) of
        true -> note({held, Before, Before, Request}, Client);
        false -> ok
    end.

%% The native library raises after the locks of the node were stopped.
is_held(Lock) ->
    try
        canal_lock_quorum:is_held(Lock)
    catch
        error:badarg -> false
    end.

finish(lost, _, _) ->
    ok;
finish(over, Lock, Client = #client{kind = Kind, request = Request}) ->
    Way =
        case Kind of
            busy -> one_of([unlock, unlock, unlock_async, unlock_async, unlock_async, by_another, death]);
            _ -> one_of([unlock, unlock_async])
        end,
    ok = end_lock(Way, Lock, Client),
    ok = check_once(Lock, Client),
    receive
        {canal_lock_quorum, lost, Lock} -> note({lost, now_ns(), Request}, Client)
    after 0 -> ok
    end,
    flush(Lock).

%% A `release' may have been sent before the lock ended.
flush(Lock) ->
    receive
        {canal_lock_quorum, _, Lock} -> flush(Lock);
        release -> flush(Lock)
    after 0 -> ok
    end.

end_lock(death, _, Client) ->
    ok = note({dying, now_ns()}, Client),
    exit(died_on_purpose);
end_lock(Way, Lock, Client = #client{request = Request}) ->
    ok = note({unlocking, now_ns(), Request, Way}, Client),
    Answer = unlock(Way, Lock),
    note({unlocked, now_ns(), Request, Answer}, Client).

unlock(by_another, Lock) ->
    {Other, Monitor} = spawn_monitor(fun() -> exit({answer, unlock(unlock, Lock)}) end),
    receive {'DOWN', Monitor, process, Other, {answer, Answer}} -> Answer end;
unlock(Function, Lock) ->
    answer_or_error(fun() -> canal_lock_quorum:Function(Lock) end).

note(Fact, #client{file = File}) ->
    test_facts:note(Fact, File).
