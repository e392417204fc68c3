%% A semaphore as OTP suggests it: one process for all keys, registered in `global'. It has a queue for each key, and
%% releases the permits of a process that dies.
-module(bench_global_semaphore).

-behaviour(gen_server).

-export([start/0, acquire/2, release/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-record(key, {held = #{} :: #{pid() => reference()}, queue = queue:new() :: queue:queue(gen_server:from())}).

%% On the calling node.
-spec start() -> ok.
start() ->
    {ok, _} = gen_server:start({global, ?MODULE}, ?MODULE, [], []),
    ok.

%% Waits. A process holds at most one permit of a key.
-spec acquire(Key :: term(), Limit :: pos_integer()) -> acquired.
acquire(Key, Limit) ->
    gen_server:call({global, ?MODULE}, {acquire, Key, Limit}, infinity).

-spec release(Key :: term()) -> ok.
release(Key) ->
    gen_server:call({global, ?MODULE}, {release, Key}, infinity).

init([]) ->
    {ok, #{}}.

handle_call({acquire, Key, Limit}, From, Keys) ->
    K = #key{held = Held, queue = Queue} = maps:get(Key, Keys, #key{}),
    case map_size(Held) < Limit of
        true -> {noreply, Keys#{Key => grant(From, K)}};
        false -> {noreply, Keys#{Key => K#key{queue = queue:in(From, Queue)}}}
    end;
handle_call({release, Key}, {Pid, _}, Keys) ->
    {reply, ok, Keys#{Key := released(Pid, maps:get(Key, Keys))}}.

handle_cast(_, Keys) ->
    {noreply, Keys}.

handle_info({'DOWN', _, process, Pid, _}, Keys) ->
    {noreply, maps:map(fun(_, K) -> died(Pid, K) end, Keys)}.

died(Pid, K = #key{held = Held}) when is_map_key(Pid, Held) -> released(Pid, K);
died(_, K) -> K.

grant({Pid, _} = From, K = #key{held = Held}) ->
    ok = gen_server:reply(From, acquired),
    K#key{held = Held#{Pid => monitor(process, Pid)}}.

released(Pid, K = #key{held = Held, queue = Queue}) ->
    {Monitor, Others} = maps:take(Pid, Held),
    true = demonitor(Monitor, [flush]),
    case queue:out(Queue) of
        {{value, From}, Rest} -> grant(From, K#key{held = Others, queue = Rest});
        {empty, _} -> K#key{held = Others}
    end.
