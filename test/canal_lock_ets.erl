%% The lock manager as an ETS design, the way the text of the original library describes it ("Algorithm (in practice)").
%% Written after that text alone, to be two things for us: the referee whose answers a sequential use of `canal_lock'
%% must repeat, and the reference that the benchmark compares with. It is not shipped.
%%
%% Rows of the public table `canal_lock_ets', where the callers themselves count:
%%   {{Key, Bucket}, Count}     Count = MaxPer + 1 says "full, and somebody has asked since": the overflow value. ETS
%%                              writes before it reads, so a refusal leaves its mark and a release must undo it.
%%   {{Key, highest}, Buckets}  how many buckets of the key were ever made: a release begins there, on its way down.
%% The manager alone writes `canal_lock_ets_monitors': {{Pid, Key}, Ref} and {Ref, Key} for each permit it heard of.
%%
%% Defects kept on purpose, because the text describes them or implies them (D1.. are named by the tests and by
%% canal_lock_conformance):
%%  D1 Anybody may release: a process that holds nothing frees another's permit, whose death then frees one more.
%%  D2 Rows are never deleted: a key used once keeps two rows for ever.
%%  D3 A new manager counts from zero while the holders of the old one live on.
%%  D4 A caller with a smaller MaxPer that finds a bucket full lowers its count to its own overflow value, and with
%%     mixed values of MaxPer the N of `{acquired, N}' means nothing.
%%  D5 The manager hears of an acquire by a cast: a holder killed before it is sent leaks its permit.
%%  D6 A release gives the permit back before it calls the manager: one that times out has happened all the same.
%%  D7 Only `Bucket =:= Buckets' ends the search, so Buckets = 0 is granted without a limit.
%%  D8 A bucket and its key's `highest' are two writes: whoever makes the second bucket, or releases, between those of
%%     the first gets `badarg'.
%%  D9 The overflow value cannot be left in one step: after MAX_DECR_TRIES a release takes two off, which may grant one
%%     permit too many; and a release that finds a bucket empty takes it below 0 and back, which may swallow an acquire.
%% D10 Its cost: a release waits for one process, and both calls walk over the full buckets.
-module(canal_lock_ets).
-behaviour(gen_server).

-export([start_link/1, stop/0, acquire/3, release/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(TABLE, ?MODULE).
-define(MONITORS, canal_lock_ets_monitors).
%% The text names ten as an example and gives no other value.
-define(MAX_DECR_TRIES, 10).

-record(state, {
    table :: ets:tab(),
    %% What a release on behalf of the dead uses: the manager cannot know the MaxPer they had acquired with.
    max_per :: pos_integer()
}).

-type answer() :: {acquired, integer()} | full.

-spec start_link(MaxPer :: pos_integer()) -> {ok, pid()} | {error, term()}.
start_link(MaxPer) when is_integer(MaxPer), MaxPer > 0 ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, MaxPer, []).

-spec stop() -> ok.
stop() ->
    gen_server:stop(?MODULE).

-spec acquire(Key :: term(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) -> answer().
acquire(Key, MaxPer, Buckets) ->
    acquire(Key, MaxPer, Buckets, 1).

acquire(Key, MaxPer, Buckets, Bucket) ->
    case increment(Key, MaxPer, Bucket) of
        Count when Count =< MaxPer ->
            gen_server:cast(?MODULE, {acquired, self(), Key}),
            {acquired, (Bucket - 1) * MaxPer + Count};
        _Overflow when Bucket =:= Buckets ->
            full;
        _Overflow ->
            acquire(Key, MaxPer, Buckets, Bucket + 1)
    end.

increment(Key, MaxPer, Bucket) ->
    Overflow = MaxPer + 1,
    try
        ets:update_counter(?TABLE, {Key, Bucket}, {2, 1, Overflow, Overflow})
    catch
        error:badarg ->
            case ets:insert_new(?TABLE, {{Key, Bucket}, 1}) of
                true ->
                    ok = note_bucket(Key, Bucket),
                    1;
                false ->
                    increment(Key, MaxPer, Bucket)
            end
    end.

note_bucket(Key, 1) ->
    true = ets:insert_new(?TABLE, {{Key, highest}, 1}),
    ok;
note_bucket(Key, _) ->
    _ = ets:update_counter(?TABLE, {Key, highest}, 1),
    ok.

%% Buckets plays no part: the way down begins at the highest bucket ever made, whatever the caller believes.
-spec release(Key :: term(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) ->
    ok | {error, out_of_buckets}.
release(Key, MaxPer, _Buckets) ->
    Answer = give_back(Key, MaxPer),
    ok = gen_server:call(?MODULE, {released, self(), Key}),
    Answer.

give_back(Key, MaxPer) ->
    give_back(Key, MaxPer, ets:lookup_element(?TABLE, {Key, highest}, 2)).

give_back(_Key, _MaxPer, 0) ->
    {error, out_of_buckets};
give_back(Key, MaxPer, Bucket) ->
    case ets:update_counter(?TABLE, {Key, Bucket}, -1) of
        Count when Count < 0 ->
            _ = ets:update_counter(?TABLE, {Key, Bucket}, {2, 1, 0, 0}),
            give_back(Key, MaxPer, Bucket - 1);
        MaxPer ->
            leave_overflow(Key, MaxPer, Bucket, ?MAX_DECR_TRIES);
        _Released ->
            ok
    end.

leave_overflow(Key, _MaxPer, Bucket, 0) ->
    _ = ets:update_counter(?TABLE, {Key, Bucket}, -2),
    ok;
leave_overflow(Key, MaxPer, Bucket, Tries) ->
    case ets:update_counter(?TABLE, {Key, Bucket}, -1) of
        MaxPer -> leave_overflow(Key, MaxPer, Bucket, Tries - 1);
        _Released -> ok
    end.

init(MaxPer) ->
    %% write_concurrency: the text counts on the tables of the VM to serve many cores.
    Table = ets:new(?TABLE, [named_table, public, set, {write_concurrency, true}]),
    %% A bag, so that each permit of a process that took several keeps its own monitor.
    ?MONITORS = ets:new(?MONITORS, [named_table, private, duplicate_bag]),
    {ok, #state{table = Table, max_per = MaxPer}}.

handle_call({released, Pid, Key}, _From, State) ->
    case ets:lookup(?MONITORS, {Pid, Key}) of
        [{_, Ref} | _] ->
            true = demonitor(Ref, [flush]),
            forget(Pid, Key, Ref);
        [] ->
            ok
    end,
    {reply, ok, State}.

handle_cast({acquired, Pid, Key}, State) ->
    Ref = monitor(process, Pid),
    true = ets:insert(?MONITORS, [{{Pid, Key}, Ref}, {Ref, Key}]),
    {noreply, State}.

handle_info({'DOWN', Ref, process, Pid, _Reason}, #state{max_per = MaxPer} = State) ->
    [{Ref, Key}] = ets:lookup(?MONITORS, Ref),
    forget(Pid, Key, Ref),
    _ = give_back(Key, MaxPer),
    {noreply, State}.

forget(Pid, Key, Ref) ->
    true = ets:delete(?MONITORS, Ref),
    true = ets:delete_object(?MONITORS, {{Pid, Key}, Ref}),
    ok.
