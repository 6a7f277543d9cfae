// Package rank is one node's part of a sweep: a process that describes its node, connects to the
// launcher, and carries out its end of each test.
//
// A rank ends by itself: when its launcher is gone or silent, at the time limit of its ticket, and
// by a signal. It then leaves no process behind, except one that no signal can end. It makes no call
// of a driver's library: such a call can block forever, so child processes make them.
package rank
