%% The lock manager as an ETS design, written only from the text of the original library ("Algorithm (in practice)"). It
%% has two uses: as the referee, whose answers sequential calls of `canal_lock' must repeat, and as "the original" of
%% the benchmark. It is not part of the library.
%%
%% It does only what the text requires, so that comparisons do not favor `canal_lock'. If the first bucket is not full,
%% a call needs:
%%
%%   acquire   one `ets:update_counter/3'; one message to the manager, which monitors the caller and inserts two rows
%%   release   one lookup of `{Key, highest}', one `ets:update_counter/3'; one message to the manager, which looks up
%%             the monitor, removes it and its two rows, and answers
%%
%% It omits what costs time and is not in the text. The manager is a plain process, not a `gen_server'. A release
%% neither monitors the manager nor starts a timer. No call looks up a name: the table and the manager are in one
%% persistent term. The rest is necessary: the reference of a release identifies its answer, the bag has a monitor for
%% each permit of a process, and without `write_concurrency' two processes together are slower than one.
%%
%% Rows of the public table `test_original', in which the callers count:
%%   {{Key, Bucket}, Count}     Count = MaxPer + 1 means "full, and a caller was refused since": the overflow value. ETS
%%                              writes before it reads, so a refusal changes the count and a release must undo that.
%%   {{Key, highest}, Buckets}  how many buckets of the key were ever created. A release starts at the highest bucket.
%% Only the manager uses `canal_lock_ets_monitors': {{Pid, Key}, Ref} and {Ref, Key} for each permit that it knows of.
%%
%% It has the defects that the text describes or implies: any process may release; rows are never deleted; a new
%% manager counts from zero while holders of the old one are alive; a caller with a smaller MaxPer lowers the count of
%% a full bucket; a holder that is killed before it sends its message leaks its permit; Buckets = 0 has no limit;
%% between the two writes for a new bucket other calls raise `badarg'; after MAX_DECR_TRIES a release may grant one
%% permit too many.
-module(test_original).

-export([start_link/1, stop/0, acquire/3, release/3]).
%% For proc_lib and sys: the benchmark waits until the manager has read its messages.
-export([init/2, system_continue/3, system_terminate/4]).

-define(TABLE, ?MODULE).
-define(MONITORS, canal_lock_ets_monitors).
%% The text gives ten as an example, and no other value.
-define(MAX_DECR_TRIES, 10).

-record(state, {
    parent :: pid(),
    table :: ets:tid(),
    monitors :: ets:tid(),
    %% For releases after the death of a holder: the manager does not know the MaxPer of its acquires.
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

%% Ignores Buckets: it starts at the highest bucket that was ever created.
-spec release(Key :: term(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) ->
    ok | {error, out_of_buckets}.
release(Key, MaxPer, _Buckets) ->
    {Table, Manager} = persistent_term:get(?MODULE),
    Answer = give_back(Table, Key, MaxPer),
    Ref = make_ref(),
    Manager ! {released, self(), Key, Ref},
    receive
        Ref -> Answer
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
    %% write_concurrency: the text relies on ETS to scale to several cores.
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
            %% A release may have removed the monitor before this message arrived.
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
