%% Random numbers for timed loops: a 32-bit LCG (Numerical Recipes) of which the upper bits are used. It costs two
%% multiplications and no heap. A call of `rand' costs as much as a pair.
-define(NEXT_RANDOM(Random), (((Random) * 1664525 + 1013904223) band 16#FFFFFFFF)).
%% From 1 to Count.
-define(ONE_OF(Count, Random), (((Random) * (Count)) bsr 32 + 1)).
