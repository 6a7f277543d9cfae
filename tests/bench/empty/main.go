// Command empty does nothing, as a Go program that is linked with C: what such a program
// costs on a machine is the yardstick of make bench.
package main

// static int nothing(void) { return 0; }
import "C"

func main() { C.nothing() }
