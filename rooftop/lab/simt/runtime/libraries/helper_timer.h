#include "helper_functions.h"
