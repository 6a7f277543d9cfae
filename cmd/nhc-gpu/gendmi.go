package main

// dmiSection is empty until this program reads DMI data.
func (g *generator) dmiSection() {}
