// The library of operations is the sum of its folders; this file only gives it a first object.
#include "ops/context.h"
