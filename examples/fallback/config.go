package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// choices are the networks to try, in order, and the capability arguments for each.
// DEL does not read them, so that it works if they have been broken after the ADD. For
// GC there may be none.
type choices struct {
	Choices       []netconf.Network          `json:"choices"`
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
}

func readChoices(c *plugin.Call) (choices, error) {
	all, err := plugin.Config[choices](c)
	if err != nil {
		return choices{}, err
	}
	if len(all.Choices) == 0 && c.Command != delegate.CommandGC {
		return choices{}, c.Invalid("choices", errors.New("there is none"))
	}
	for i, n := range all.Choices {
		key := fmt.Sprintf("choices[%d]", i)
		if n.IsZero() {
			return choices{}, c.Invalid(key, errors.New("null, want an object"))
		}
		if all.Choices[i], err = c.Complete(n); err != nil {
			return choices{}, fmt.Errorf("network %q: %s: %w", c.Name, key, err)
		}
	}
	return all, nil
}

// failures are the errors of the choices, in order.
type failures []error

// Error names each choice by its index.
func (f failures) Error() string {
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = fmt.Sprintf("choices[%d]: %v", i, err)
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors of the choices.
func (f failures) Unwrap() []error { return f }

// CNICode returns 11 (try again later) if any choice has that code, because it may
// work the next time. Otherwise it returns the code of the last choice.
func (f failures) CNICode() uint {
	code := types.ErrUnknown
	for _, err := range f {
		if code = status.Code(err); code == types.ErrTryAgainLater {
			break
		}
	}
	return code
}
