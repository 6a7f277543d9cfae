package run

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// Outcome is the result of a request: an answer of the worker, or the reason why there is none. The
// zero value is an interrupted request. Only [Outcome.Answer] and the methods built on it give
// access to the answer, so no caller can mistake a hang for an answer.
type Outcome struct {
	answer *wire.Response
	hung   *checks.Hung // no answer in time
	died   string       // how the worker ended instead of answering
	// crashes counts the consecutive runs, with this one, that crashed a worker inside the library
	// of the lane; 0 if that is not known.
	crashes int
	lost    string // why the request was not carried out at all
	late    bool   // because slow scans of processes have taken the time
}

func answered(r *wire.Response) Outcome { return Outcome{answer: r} }

func hung(h *checks.Hung) Outcome { return Outcome{hung: h} }

// unsent is the outcome of a check that the end of the run has left no time.
func unsent() Outcome { return hung(&checks.Hung{Cut: true}) }

func died(how string) Outcome { return Outcome{died: how} }

func lost(why string) Outcome { return Outcome{lost: why} }

// These are the formats of why a vendor's lane has ended, for the name of the library.
const (
	hungBefore    = "%s hung in an earlier check"
	crashedBefore = "the %s worker crashed in an earlier check"
	slowBefore    = "%s answers slowly"
	noTime        = "%s has no time left: earlier checks were slow"
	outOfTime     = "%s has no time left after a slow scan of processes" // the check was not done in the time that the scan left
)

func late(lane checks.Lane) Outcome {
	return Outcome{lost: fmt.Sprintf(outOfTime, libraries[lane]), late: true}
}

// Answer returns the worker's answer, or an error that explains why there is none. If the answer
// reports an error, Answer returns only that error.
func (o Outcome) Answer() (*wire.Response, error) {
	switch {
	case o.hung != nil:
		return nil, fmt.Errorf("no answer within %s (%s)", o.hung.For.Round(10*time.Millisecond), Describe(o.hung))
	case o.died != "":
		return nil, errors.New(o.died)
	case o.lost != "":
		return nil, errors.New(o.lost)
	case o.answer == nil:
		return nil, errors.New("interrupted")
	case o.answer.Err != "":
		return nil, workerError{o.answer.Err, o.answer.Kind}
	}
	return o.answer, nil
}

// Errors of the memory of earlier runs: the data was kept in a spare directory, which is not a failure, or
// its directory does not answer.
var (
	ErrElsewhere = errors.New("kept in a spare directory")
	ErrSilent    = errors.New("the data of earlier runs does not answer")
)

var errorKinds = map[wire.ErrorKind]error{wire.Exists: fs.ErrExist, wire.Elsewhere: ErrElsewhere, wire.Silent: ErrSilent, wire.NoDirectory: fs.ErrNotExist}

// workerError is an error that a worker has answered.
type workerError struct {
	text string
	kind wire.ErrorKind
}

func (e workerError) Error() string { return e.text }

// Is makes it the error of its kind.
func (e workerError) Is(target error) bool { return e.kind != 0 && target == errorKinds[e.kind] }

// Late reports that the worker gave no answer in time.
func (o Outcome) Late() bool { return o.hung != nil }

// AnswerTo is Answer with an error that names the operation: "read /etc/nhc/nhc.conf". A worker's
// own errors already name it.
func (o Outcome) AnswerTo(doing string) (*wire.Response, error) {
	resp, err := o.Answer()
	if err != nil && o.answer == nil {
		err = fmt.Errorf("%s: %w", doing, err)
	}
	return resp, err
}

// Failure returns why there is no answer, nil if there is one.
func (o Outcome) Failure() error {
	_, err := o.Answer()
	return err
}

// FailureIn is Failure with the errors of [Outcome.AnswerTo].
func (o Outcome) FailureIn(doing string) error {
	_, err := o.AnswerTo(doing)
	return err
}

// File is a file that a worker has read. The zero value is a regular file without content; callers
// check the error first.
type File struct {
	wire.FileInfo
	Data []byte
}

// File returns the file of a request of [wire.OpRead] or [wire.OpTake].
func (o Outcome) File(doing string) (File, error) {
	resp, err := o.AnswerTo(doing)
	switch {
	case err != nil:
		return File{}, err
	case resp.File == nil:
		return File{}, fmt.Errorf("%s: the answer describes no file", doing)
	}
	return File{*resp.File, resp.Data}, nil
}
