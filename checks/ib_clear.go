package checks

func (e *Env) heedIBClears(h *history) {}
