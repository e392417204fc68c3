%% The lock manager as an ETS design, written only after the text of the original library ("Algorithm (in practice)").
%% Two uses: the referee, whose answers a sequential use of `canal_lock' must repeat; and "the original" of the
%% benchmark. It is not shipped.
%%
%% It does what the text asks for and nothing more, so that no comparison flatters `canal_lock'. Per call, when the
%% first bucket has room:
%%
%%   acquire   one `ets:update_counter/3'; one message to the manager, which monitors the caller and inserts two rows
%%   release   one look-up of `{Key, highest}', one `ets:update_counter/3'; one message to the manager, which looks the
%%             monitor up, removes it and its two rows, and answers
%%
%% What costs time and is not in the text is left out. The manager is a plain process, not a `gen_server'. `release/3'
%% neither monitors the manager nor starts a timer. No call looks a name up: the table and the manager are one
%% persistent term. The rest must stay: the reference of a release identifies its answer, the bag keeps a monitor for
%% each permit of one process, and without `write_concurrency' two processes do less together than one alone.
%%
%% Rows of the public table `test_original', where the callers themselves count:
%%   {{Key, Bucket}, Count}     Count = MaxPer + 1 says "full, and somebody has asked since": the overflow value. ETS
%%                              writes before it reads, so a refusal leaves its mark and a release must undo it.
%%   {{Key, highest}, Buckets}  how many buckets of the key were ever made: a release begins there, on its way down.
%% Only the manager uses `canal_lock_ets_monitors': {{Pid, Key}, Ref} and {Ref, Key} for each permit that it knows of.
%%
%% Defects kept on purpose, because the text describes them or implies them (D1.. are named by the tests and by
%% canal_lock_conformance_tests):
%%  D1 Anybody may release: a process that holds nothing frees another's permit, whose death then frees one more.
%%  D2 Rows are never deleted: a key used once keeps two rows for ever.
%%  D3 A new manager counts from zero while the holders of the old one live on.
%%  D4 A caller with a smaller MaxPer that finds a bucket full lowers its count to its own overflow value, and with
%%     mixed values of MaxPer the N of `{acquired, N}' means nothing.
%%  D5 A message tells the manager of an acquire: a holder killed before it is sent leaks its permit.
%%  D6 A release gives the permit back before it calls the manager: one that times out has happened all the same.
%%     (The text sets no time limit; a call of OTP has one. So there is `release/4' beside `release/3'.)
%%  D7 Only `Bucket =:= Buckets' ends the search, so Buckets = 0 is granted without a limit.
%%  D8 A bucket and its key's `highest' are two writes: whoever makes the second bucket, or releases, between those of
%%     the first gets `badarg'.
%%  D9 The overflow value cannot be left in one step: after MAX_DECR_TRIES a release takes two off, which may grant one
%%     permit too many; and a release that finds a bucket empty takes it below 0 and back, which may swallow an acquire.
%% D10 Its cost: a release waits for one process, and both calls walk over the full buckets.
-module(test_original).

-export([start_link/1, stop/0, acquire/3, release/3, release/4]).
%% Called by proc_lib, and by sys: tests suspend the manager, and wait until it has read its messages.
-export([init/2, system_continue/3, system_terminate/4]).

-define(TABLE, ?MODULE).
-define(MONITORS, canal_lock_ets_monitors).
%% The text names ten as an example and gives no other value.
-define(MAX_DECR_TRIES, 10).

-record(state, {
    parent :: pid(),
    table :: ets:tid(),
    monitors :: ets:tid(),
    %% What a release on behalf of the dead uses: the manager cannot know the MaxPer they had acquired with.
    max_per :: pos_integer()
}).

-type answer() :: {acquired, integer()} | full.

-spec start_link(MaxPer :: pos_integer()) -> {ok, pid()} | {error, term()}.
start_link(MaxPer) when is_integer(MaxPer), MaxPer > 0 ->
    proc_lib:start_link(?MODULE, init, [self(), MaxPer]).

-spec stop() -> ok.
stop() ->
    proc_lib:stop(?MODULE).

-spec acquire(Key :: term(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) -> answer().
acquire(Key, MaxPer, Buckets) ->
    {Table, Manager} = persistent_term:get(?MODULE),
    acquire(Table, Manager, Key, MaxPer, Buckets, 1).

acquire(Table, Manager, Key, MaxPer, Buckets, Bucket) ->
    case increment(Table, Key, MaxPer, Bucket) of
        Count when Count =< MaxPer ->
            Manager ! {acquired, self(), Key},
            {acquired, (Bucket - 1) * MaxPer + Count};
        _Overflow when Bucket =:= Buckets ->
            full;
        _Overflow ->
            acquire(Table, Manager, Key, MaxPer, Buckets, Bucket + 1)
    end.

increment(Table, Key, MaxPer, Bucket) ->
    Overflow = MaxPer + 1,
    try
        ets:update_counter(Table, {Key, Bucket}, {2, 1, Overflow, Overflow})
    catch
        error:badarg ->
            case ets:insert_new(Table, {{Key, Bucket}, 1}) of
                true ->
                    ok = note_bucket(Table, Key, Bucket),
                    1;
                false ->
                    increment(Table, Key, MaxPer, Bucket)
            end
    end.

note_bucket(Table, Key, 1) ->
    true = ets:insert_new(Table, {{Key, highest}, 1}),
    ok;
note_bucket(Table, Key, _) ->
    _ = ets:update_counter(Table, {Key, highest}, 1),
    ok.

%% Buckets plays no part: the way down begins at the highest bucket ever made, whatever the caller believes.
-spec release(Key :: term(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) ->
    ok | {error, out_of_buckets}.
release(Key, MaxPer, Buckets) ->
    release(Key, MaxPer, Buckets, infinity).

%% The same by a caller that waits so long for the manager, and exits with `timeout' then.
-spec release(Key :: term(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer(), timeout()) ->
    ok | {error, out_of_buckets}.
release(Key, MaxPer, _Buckets, Timeout_ms) ->
    {Table, Manager} = persistent_term:get(?MODULE),
    Answer = give_back(Table, Key, MaxPer),
    Ref = make_ref(),
    Manager ! {released, self(), Key, Ref},
    receive
        Ref -> Answer
    after Timeout_ms -> exit(timeout)
    end.

give_back(Table, Key, MaxPer) ->
    give_back(Table, Key, MaxPer, ets:lookup_element(Table, {Key, highest}, 2)).

give_back(_Table, _Key, _MaxPer, 0) ->
    {error, out_of_buckets};
give_back(Table, Key, MaxPer, Bucket) ->
    case ets:update_counter(Table, {Key, Bucket}, -1) of
        Count when Count < 0 ->
            _ = ets:update_counter(Table, {Key, Bucket}, {2, 1, 0, 0}),
            give_back(Table, Key, MaxPer, Bucket - 1);
        MaxPer ->
            leave_overflow(Table, Key, MaxPer, Bucket, ?MAX_DECR_TRIES);
        _Released ->
            ok
    end.

leave_overflow(Table, Key, _MaxPer, Bucket, 0) ->
    _ = ets:update_counter(Table, {Key, Bucket}, -2),
    ok;
leave_overflow(Table, Key, MaxPer, Bucket, Tries) ->
    case ets:update_counter(Table, {Key, Bucket}, -1) of
        MaxPer -> leave_overflow(Table, Key, MaxPer, Bucket, Tries - 1);
        _Released -> ok
    end.

-spec init(Parent :: pid(), MaxPer :: pos_integer()) -> no_return().
init(Parent, MaxPer) ->
    true = register(?MODULE, self()),
    %% write_concurrency: the text counts on the tables of the VM to serve many cores.
    ?TABLE = ets:new(?TABLE, [named_table, public, set, {write_concurrency, true}]),
    ?MONITORS = ets:new(?MONITORS, [named_table, private, duplicate_bag]),
    Table = ets:whereis(?TABLE),
    ok = persistent_term:put(?MODULE, {Table, self()}),
    ok = proc_lib:init_ack(Parent, {ok, self()}),
    loop(#state{parent = Parent, table = Table, monitors = ets:whereis(?MONITORS), max_per = MaxPer}).

loop(#state{parent = Parent, table = Table, monitors = Monitors, max_per = MaxPer} = State) ->
    receive
        {acquired, Pid, Key} ->
            Ref = monitor(process, Pid),
            true = ets:insert(Monitors, {{Pid, Key}, Ref}),
            true = ets:insert(Monitors, {Ref, Key}),
            loop(State);
        {released, Pid, Key, Answer} ->
            ok = forget_one(Monitors, {Pid, Key}),
            Pid ! Answer,
            loop(State);
        {'DOWN', Ref, process, Pid, _Reason} ->
            %% A release may have removed the monitor while this message was on its way.
            case ets:lookup(Monitors, Ref) of
                [{Ref, Key}] ->
                    true = ets:delete(Monitors, Ref),
                    true = ets:delete_object(Monitors, {{Pid, Key}, Ref}),
                    _ = give_back(Table, Key, MaxPer);
                [] ->
                    ok
            end,
            loop(State);
        {system, From, Request} ->
            sys:handle_system_msg(Request, From, Parent, ?MODULE, [], State)
    end.

forget_one(Monitors, PidAndKey) ->
    case ets:lookup(Monitors, PidAndKey) of
        [{_, Ref}] ->
            true = demonitor(Ref),
            true = ets:delete(Monitors, Ref),
            true = ets:delete(Monitors, PidAndKey),
            ok;
        [{_, Ref} = First | _] ->
            true = demonitor(Ref),
            true = ets:delete(Monitors, Ref),
            true = ets:delete_object(Monitors, First),
            ok;
        [] ->
            ok
    end.

-spec system_continue(pid(), [sys:dbg_opt()], #state{}) -> no_return().
system_continue(_Parent, _Debug, State) ->
    loop(State).

-spec system_terminate(term(), pid(), [sys:dbg_opt()], #state{}) -> no_return().
system_terminate(Reason, _Parent, _Debug, _State) ->
    exit(Reason).
