%% Keeps the register, and what all clients have seen, noted by themselves: over a connection each, so that what a
%% client has noted is here even if its node is killed the moment after. What is worth a line is shown as it comes.
%%
%% Times are those of the clock that leases are counted by. It is one for all processes of a machine, so what the
%% nodes have noted can be compared.
-module(cluster_demo_book).

-export([start/0, port/1, note/2, await/4, record/1]).
-export([connect/2, tell/2, ask/2]).

-export_type([book/0, client/0, line/0, event/0, a_lock/0, record/0]).

-type book() :: {pid(), inet:port_number()}.

%% In which life of which node.
-type client() :: {Node :: atom(), Life :: pos_integer(), cluster_demo_client:role()}.

-opaque line() :: gen_tcp:socket().

%% By the number that its client gave it.
-type a_lock() :: {pos_integer(), read | write, [canal_lock_quorum:name(), ...], Fence :: non_neg_integer()}.

-type event() :: {At_ns :: integer(), client() | demo, what()}.

-type what() ::
    {granted | at_risk | lost, a_lock()}
    %% Found held by a look that began and ended then.
    | {held, a_lock(), Began_ns :: integer(), Ended_ns :: integer()}
    | {refused, [canal_lock_quorum:name(), ...], timeout | no_quorum}
    | {gives_back, a_lock()}
    | {given, a_lock(), ok | {error, not_held | timeout}}
    %% What the register answered; and whether the lock was found held after that.
    | {cluster_demo_register:request(), a_lock(), cluster_demo_register:answer(), HeldAfter :: boolean()}
    %% Not held any more, so nothing is written.
    | {gives_up, a_lock()}
    %% Has looked, and is going to write after a pause without another look; or to give nothing back unless it is
    %% told.
    | {dawdles | keeps, a_lock()}
    | rests
    %% What the demo does.
    | {killed, Node :: atom(), Life :: pos_integer()}
    | {said, iodata()}.

-type record() :: #{events := [event()], log := [cluster_demo_register:entry()], values := #{term() => integer()}}.

-record(book, {
    zero_ns :: integer(),
    register = cluster_demo_register:new() :: cluster_demo_register:register(),
    %% The last one first.
    events = [] :: [event()],
    waiting = [] :: [{{pid(), reference()}, fun((event()) -> boolean())}]
}).

-define(TCP_OPTIONS, [binary, {packet, 4}, {active, false}, {nodelay, true}]).

%% Linked to the caller. Its zero is now.
-spec start() -> book().
start() ->
    {ok, Listener} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {backlog, 64} | ?TCP_OPTIONS]),
    {ok, Port} = inet:port(Listener),
    Book = spawn_link(fun() -> loop(#book{zero_ns = canal_lock_quorum_nif:now()}) end),
    Door = spawn_link(fun() -> receive open -> accept(Listener, Book) end end),
    ok = gen_tcp:controlling_process(Listener, Door),
    Door ! open,
    {Book, Port}.

-spec port(book()) -> inet:port_number().
port({_, Port}) ->
    Port.

%% Something that the demo has done.
-spec note(book(), what()) -> ok.
note({Book, _}, What) ->
    Book ! {event, {canal_lock_quorum_nif:now(), demo, What}},
    ok.

%% An event that was noted since then, or will be.
-spec await(book(), Since_ns :: integer(), fun((event()) -> boolean()), timeout()) -> event() | none.
await({Book, _}, Since_ns, Is, Timeout_ms) ->
    Ref = make_ref(),
    Book ! {await, {self(), Ref}, fun(Event) -> element(1, Event) >= Since_ns andalso Is(Event) end},
    receive
        {Ref, Event} -> Event
    after Timeout_ms -> none
    end.

%% All that was noted, the first one first.
-spec record(book()) -> record().
record({Book, _}) ->
    Ref = make_ref(),
    Book ! {record, {self(), Ref}},
    receive
        {Ref, Record} -> Record
    end.

loop(#book{events = Events, waiting = Waiting, register = Register} = Book) ->
    receive
        {event, Event} ->
            ok = cluster_demo_screen:show(Event, Book#book.zero_ns),
            {Met, Unmet} = lists:partition(fun({_, Is}) -> Is(Event) end, Waiting),
            _ = [Pid ! {Ref, Event} || {{Pid, Ref}, _} <- Met],
            loop(Book#book{events = [Event | Events], waiting = Unmet});
        {ask, {Pid, Ref}, Who, Request} ->
            {Answer, Next} = cluster_demo_register:handle(Who, Request, Register),
            Pid ! {Ref, Answer},
            loop(Book#book{register = Next});
        {await, {Pid, Ref} = From, Is} ->
            case lists:search(Is, Events) of
                {value, Event} ->
                    Pid ! {Ref, Event},
                    loop(Book);
                false ->
                    loop(Book#book{waiting = [{From, Is} | Waiting]})
            end;
        {record, {Pid, Ref}} ->
            Pid ! {Ref, #{
                events => lists:reverse(Events),
                log => cluster_demo_register:log(Register),
                values => cluster_demo_register:values(Register)
            }},
            loop(Book)
    end.

accept(Listener, Book) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Serving = spawn_link(fun() -> receive open -> serve(hello, Socket, Book) end end),
    ok = gen_tcp:controlling_process(Socket, Serving),
    Serving ! open,
    accept(Listener, Book).

%% A client ends when its node does.
serve(Who, Socket, Book) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, Bytes} -> serve(served(binary_to_term(Bytes), Who, Socket, Book), Socket, Book);
        {error, _} -> ok
    end.

served({hello, Who}, hello, _Socket, _Book) ->
    Who;
served({tell, At_ns, What}, Who, _Socket, Book) ->
    Book ! {event, {At_ns, Who, What}},
    Who;
served({ask, Request}, Who, Socket, Book) ->
    Ref = make_ref(),
    Book ! {ask, {self(), Ref}, Who, Request},
    receive
        {Ref, Answer} ->
            %% If the client is gone, the next recv says so.
            _ = gen_tcp:send(Socket, term_to_binary(Answer)),
            Who
    end.

%%% On the nodes

-spec connect(inet:port_number(), client()) -> line().
connect(Port, Who) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, ?TCP_OPTIONS),
    ok = gen_tcp:send(Socket, term_to_binary({hello, Who})),
    Socket.

%% What happened just now.
-spec tell(line(), what()) -> ok.
tell(Socket, What) ->
    gen_tcp:send(Socket, term_to_binary({tell, canal_lock_quorum_nif:now(), What})).

%% The register.
-spec ask(line(), cluster_demo_register:request()) -> cluster_demo_register:answer().
ask(Socket, Request) ->
    ok = gen_tcp:send(Socket, term_to_binary({ask, Request})),
    {ok, Bytes} = gen_tcp:recv(Socket, 0),
    binary_to_term(Bytes).
