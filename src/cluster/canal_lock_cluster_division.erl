%% @private Divides the limit of a key among the nodes that use it.
%%
%% If the limit is enough, each node gets what it demands. Otherwise each node gets `min(Demand, Level)', with the
%% largest whole level for which the limit is enough (max-min fairness). What is left is given in <em>turns</em>: the
%% node that has waited longest gets a permit above the level, or as many as its oldest waiter needs. It keeps them
%% until its turn ends, as the caller decides.
%%
%% A node whose oldest waiter needs more than the level, and more than is left, would never get its permits. So when it
%% has waited for a turn of each other node, the level is lowered for its turn.
-module(canal_lock_cluster_division).

-export([divide/4]).

-export_type([demand/0]).

%% `demand': the permits that the node uses and that it needs. `next': how many its oldest waiter needs. `reserved': the
%% permits of its turn, or 0. `since': since when it has waited for a turn, or for permits.
-type demand() :: #{
    node := node(),
    demand := non_neg_integer(),
    next := non_neg_integer(),
    reserved := non_neg_integer(),
    since := integer()
}.

%% The targets, whose sum is at most the limit, whether the limit is enough for all demands, and the nodes whose turn
%% begins, with what is reserved for them. `Turn_ms': the length of a turn. Cost: O(n log Limit) for n nodes.
-spec divide(Limit :: non_neg_integer(), [demand()], Turn_ms :: pos_integer(), Now_ms :: integer()) ->
    {enough | short, Targets :: #{node() => non_neg_integer()}, Turns :: #{node() => pos_integer()}}.
divide(Limit, Demands, Turn_ms, Now_ms) ->
    case lists:sum([Demand || #{demand := Demand} <- Demands]) =< Limit of
        true ->
            {enough, maps:from_list([{Node, Demand} || #{node := Node, demand := Demand} <- Demands]), #{}};
        false ->
            Oldest = lists:sort(fun(#{since := A}, #{since := B}) -> A =< B end, reserved(Limit, Demands)),
            LastTurn_ms = Now_ms - Turn_ms * (length([D || D = #{next := Next} <- Demands, Next > 0]) - 1),
            {Targets, Turns} = turns(Limit, Oldest, LastTurn_ms),
            {short, Targets, Turns}
    end.

%% A limit that was lowered ends all turns for which it is too low.
reserved(Limit, Demands) ->
    Fitting = [D#{reserved := min(Reserved, Demand)} || D = #{reserved := Reserved, demand := Demand} <- Demands],
    case sum(0, Fitting) =< Limit of
        true -> Fitting;
        false -> [D#{reserved := 0} || D <- Fitting]
    end.

turns(Limit, Demands, LastTurn_ms) ->
    Level = level(Limit, Demands, 0, Limit),
    Starved = [
        D
     || D = #{next := Next, reserved := 0, demand := Demand, since := Since} <- Demands,
        min(Next, Demand) > max(Level, 0), Since =< LastTurn_ms
    ],
    Rest = Limit - sum(Level, Demands),
    case Starved of
        [#{node := Node, next := Next, demand := Demand} = First | _] ->
            Wanted = min(Next, Demand),
            Others = [D || D <- Demands, D =/= First],
            case Wanted + sum(0, Others) =< Limit of
                true ->
                    {Targets, Turns} = turns(Limit, [First#{reserved := Wanted} | Others], LastTurn_ms),
                    {Targets, Turns#{Node => Wanted}};
                false ->
                    hand_out(Rest, Level, Demands, #{}, #{})
            end;
        [] ->
            hand_out(Rest, Level, Demands, #{}, #{})
    end.

%% The permits above the level.
hand_out(_, _, [], Targets, Turns) ->
    {Targets, Turns};
hand_out(Rest, Level, [D | More], Targets, Turns) ->
    #{node := Node, demand := Demand, next := Next, reserved := Reserved} = D,
    Target = target(Level, D),
    Wanted = max(Target + 1, min(Next, Demand)),
    case Reserved =:= 0 andalso Next > 0 andalso Target < Demand andalso Wanted - Target =< Rest of
        true -> hand_out(Rest - Wanted + Target, Level, More, Targets#{Node => Wanted}, Turns#{Node => Wanted});
        false -> hand_out(Rest, Level, More, Targets#{Node => Target}, Turns)
    end.

%% The largest level, by bisection: the limit is enough for `Low', and not for more than `High'.
level(_, _, Level, Level) ->
    Level;
level(Limit, Demands, Low, High) ->
    Middle = (Low + High + 1) div 2,
    case sum(Middle, Demands) =< Limit of
        true -> level(Limit, Demands, Middle, High);
        false -> level(Limit, Demands, Low, Middle - 1)
    end.

sum(Level, Demands) ->
    lists:sum([target(Level, D) || D <- Demands]).

target(Level, #{demand := Demand, reserved := Reserved}) ->
    max(Reserved, min(Demand, Level)).
