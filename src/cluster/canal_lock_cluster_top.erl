%% @private
%% The pictures of `canal_lock_cluster:top/1': the cluster permits as this node sees them. canal_lock_screen draws them.
-module(canal_lock_cluster_top).

-behaviour(canal_lock_screen).

-include("../canal_lock_errors.hrl").

-export([title/0, read/1, explain/1, head/2, sections/2]).

-import(canal_lock_screen, [cells/1, duration/1]).

%% One reading. The keys of which most permits are in use on this node.
-type data() :: #{
    status := canal_lock_cluster:status(),
    keys := [{canal_lock:key(), Share :: non_neg_integer(), InUse :: non_neg_integer()}]
}.

-define(RATES, [granted, refused, received, returned, lost, wait_us]).

title() ->
    {"canal_lock_cluster", ""}.

explain(Cause) ->
    canal_lock_cluster_errors:explain(Cause).

-spec read(pos_integer()) -> canal_lock_screen:reading().
read(Rows) ->
    try canal_lock_cluster_status:read() of
        {raise, Cause} -> {raise, Cause};
        Status -> read(Status, ?CAUGHT(busiest(Rows)))
    catch
        exit:_ -> {failed, "the agent of this node does not answer"}
    end.

read(_, {raise, Cause}) -> {raise, Cause};
read(Status, Keys) -> {read, #{status => Status, keys => Keys}}.

busiest(Rows) ->
    Add = fun({Key, Share, InUse}, Ranking) -> canal_lock_ranking:add({-InUse, -Share, Key}, Ranking) end,
    AddAll = fun(Keys, Ranking) -> lists:foldl(Add, Ranking, Keys) end,
    Ranking = canal_lock_view:fold_shares(AddAll, canal_lock_ranking:new(Rows)),
    [{Key, -Share, -InUse} || {InUse, Share, Key} <- canal_lock_ranking:least(Ranking)].

-spec head(canal_lock_screen:last(), data()) -> [unicode:chardata()].
head(Last, #{status := Status = #{keys := Keys, totals := Totals}}) ->
    Growth = case Last of
        {#{status := #{totals := Before}}, _} -> canal_lock_screen:growth(?RATES, Before, Totals);
        none -> #{}
    end,
    Rate = fun(Name) -> canal_lock_screen:rate(Name, Growth, Last) end,
    [
        cells(["keys", "asked/s", "mean wait", "refused/s"]),
        cells([Keys, Rate(granted), mean_wait(Growth), Rate(refused)]),
        cells(["received/s", "returned/s", "lost/s"]),
        cells([Rate(received), Rate(returned), Rate(lost)]),
        [session(Status), "; ", allocator(Status)]
    ].

mean_wait(#{granted := Granted, wait_us := Wait_us}) when Granted > 0 -> duration(Wait_us / Granted / 1000);
mean_wait(_) -> "-".

session(#{session := none}) -> "no session: calls answer no_quorum";
session(#{session := Session}) -> ["session ", integer_to_list(Session)].

allocator(#{allocator := none}) -> "no allocator";
allocator(#{allocator := Node, term := Term} = Status) ->
    ["allocator ", atom_to_list(Node), " (term ", integer_to_list(Term), ")", waits_for(Status)].

waits_for(#{waits_for := unknown}) -> ", which does not answer";
waits_for(#{waits_for := []}) -> "";
waits_for(#{waits_for := Nodes}) -> [", which waits for ", lists:join(", ", [atom_to_list(Node) || Node <- Nodes])].

-spec sections(data(), canal_lock_screen:show()) -> [canal_lock_screen:section()].
sections(#{keys := Keys}, Show) ->
    [{always, ["in use here", "share"], "key", Keys, fun({Key, Share, InUse}) -> {[InUse, Share], Show(Key)} end}].
