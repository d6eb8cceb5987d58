#pragma once
#include "halves.h"
