package node_test

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/session/sessiontest"
)

func TestMain(m *testing.M) { sessiontest.Main(m) }
