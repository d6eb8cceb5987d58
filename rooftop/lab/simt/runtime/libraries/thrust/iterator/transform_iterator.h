#include "../fancy.h"
