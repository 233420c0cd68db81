"""How functions are compiled and cached, and how compiled code is handed a state by its address."""
