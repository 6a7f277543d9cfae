// Package lbnl replays the recorded cases of the reference, LBNL Node Health Check, against the
// nhc-gpu program.
//
// A case is one line of testdata/cases/GROUP.jsonl: a node to set up (files, mounts, processes,
// sockets), a command line, and the recorded outcome of the reference: exit status, both output
// streams, calls of other commands and of syslog, files. If nhc-gpu differs on purpose, the fields
// ending in _ours have the expected outcome instead. case_test.go explains every field; patterns and
// replacements are those of Go's regexp package.
//
// The tests need root, because each case has its own mount, process, host name, IPC and network
// namespaces:
//
//	go test ./tests/lbnl
//	go test ./tests/lbnl -run 'TestRecorded/core-match'
//	NHC_GPU_BINARY=/usr/sbin/nhc go test ./tests/lbnl -run TestRecorded//core-log-full -v
//
// pending.txt names cases that this version does not pass yet. They run all the same; remove a case
// that passes from the list.
//
// The test binary has two more roles, selected by its name (argv[0]). As case-init it is process 1 of
// a case: it sets the stage, runs the program and reports. As case-process it is a background process
// of a case until it becomes sleep(1) or sh(1). Nothing of a case outlives its process 1.
package lbnl
