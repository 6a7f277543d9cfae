package run

import (
	"errors"
	"fmt"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Outcome is what became of a request. Exactly one of its fields is set.
type Outcome struct {
	*Response
	Hung *checks.Hung // no answer in time
	Died string       // the worker ended in place of answering; how
	Lost string       // not carried out at all; why
}

// Failure is why an outcome holds no answer, nil if it does.
func (o Outcome) Failure() error {
	switch {
	case o.Hung != nil:
		return fmt.Errorf("no answer within %s (%s)", o.Hung.For.Round(10*time.Millisecond), Describe(o.Hung))
	case o.Died != "":
		return errors.New(o.Died)
	case o.Lost != "":
		return errors.New(o.Lost)
	case o.Response == nil:
		return errors.New("interrupted")
	case o.Err != "":
		return errors.New(o.Err)
	}
	return nil
}

// FailureIn is Failure for an error that says what was being done: "read
// /etc/nhc/nhc.conf". A worker's own errors say it already.
func (o Outcome) FailureIn(doing string) error {
	err := o.Failure()
	if err == nil || o.Response != nil && o.Hung == nil && o.Died == "" && o.Lost == "" {
		return err
	}
	return fmt.Errorf("%s: %w", doing, err)
}
