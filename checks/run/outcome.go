package run

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// Outcome is the result of a request: an answer of the worker, or the reason why there
// is none. The zero value is a request that was interrupted. Nothing but [Outcome.Answer]
// and the methods built on it gives access to the answer, so a hang cannot be taken for one.
type Outcome struct {
	answer *wire.Response
	hung   *checks.Hung // no answer in time
	died   string       // how the worker ended instead of answering
	// crashes counts the runs in a row, with this one, in which the library of the lane
	// ended a worker; 0 if that is not known.
	crashes int
	lost    string // why the request was not carried out at all
}

func answered(r *wire.Response) Outcome { return Outcome{answer: r} }

func hung(h *checks.Hung) Outcome { return Outcome{hung: h} }

func died(how string) Outcome { return Outcome{died: how} }

func lost(why string) Outcome { return Outcome{lost: why} }

// Answer returns the worker's answer, or an error that says why there is none. An
// answer that reports an error is returned as that error alone.
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
	case o.answer.Exists:
		return nil, existsError(o.answer.Err)
	case o.answer.Err != "":
		return nil, errors.New(o.answer.Err)
	}
	return o.answer, nil
}

// existsError is the error of a worker that found a file where none must be.
type existsError string

func (e existsError) Error() string { return string(e) }

// Is makes it an [fs.ErrExist].
func (e existsError) Is(target error) bool { return target == fs.ErrExist }

// AnswerTo is Answer with an error that names the operation: "read
// /etc/nhc/nhc.conf". A worker's own errors say it already.
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

// File is a file that a worker has looked at. The zero value is a regular file without
// content; callers look at the error first.
type File struct {
	wire.FileInfo
	Data []byte
}

// File returns the file that a request of [wire.OpRead] or [wire.OpTake] was about.
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
