// Command empty is a Go program that is linked with C and does nothing. Its cost on a machine is
// the yardstick of make bench.
package main

// static int nothing(void) { return 0; }
import "C"

func main() { C.nothing() }
