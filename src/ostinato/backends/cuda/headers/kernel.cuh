// Everything that the kernel of a loop nest may use.
#pragma once
#include "arithmetic.cuh"
#include "conversion.cuh"
#include "groups.cuh"
#include "math.cuh"
#include "packs.cuh"
