%% Describes the machine and the versions of a run. Each report and summary begins with these facts.
-module(bench_machine).

-export([facts/2]).

-export_type([facts/0]).

%% Names and values contain no line breaks.
-type facts() :: [{Name :: string(), Value :: string()}].

-spec facts(Program :: string(), ModeName :: string()) -> facts().
facts(Program, ModeName) ->
    [
        {"program", Program},
        {"mode", ModeName},
        {"machine", processor()},
        {"system", erlang:system_info(system_architecture)},
        {"otp", lists:concat([erlang:system_info(otp_release), ", ", erlang:system_info(emu_flavor)])},
        {"schedulers", integer_to_list(erlang:system_info(schedulers_online))},
        {"commit", commit()},
        {"date", calendar:system_time_to_rfc3339(erlang:system_time(second), [{offset, "Z"}])}
    ].

%% Only Linux has this file.
processor() ->
    {ok, Info} = case file:read_file("/proc/cpuinfo") of {error, _} -> {ok, ""}; Read -> Read end,
    case re:run(Info, "^model name\\s*: (.*)$", [multiline, {capture, all_but_first, list}]) of
        {match, [Model]} -> lists:concat([Model, ", ", erlang:system_info(logical_processors), " processors"]);
        nomatch -> "unknown"
    end.

commit() ->
    case string:trim(os:cmd("git describe --always --dirty --exclude '*' 2>/dev/null")) of
        "" -> "none";
        Commit -> Commit
    end.
