//go:build e2e && linux

package conform_test

import (
	"errors"
	"testing"

	"github.com/metacni/metacni/delegate/conform"
)

// A meta-plugin must not need the namespace of a container to ask its delegates for their DEL.
func TestDelOfAMetaPluginWithoutTheNamespace(t *testing.T) {
	t.Parallel()
	conf := onlyChecks(t, "add", "del", "del-again", "del-bare", "del-gone")
	conf.NetNS = true
	if _, _, err := conform.Findings(t.Context(), newMeta().program(), conf); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	check(t, newMeta("needs the namespace").program(), conf, "del-gone")
	check(t, newMeta().program(), conf)
}
