package delegatetest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// Result returns a plugin that succeeds. Its ADD answers with r in the version
// that the configuration asks for, or, when r is nil, passes prevResult
// through, or else an empty result. Its VERSION answers with all versions.
func Result(r types.Result) Plugin {
	return func(_ context.Context, c Call) ([]byte, error) {
		switch c.Command {
		case "ADD":
			return answer(c, r)
		case "VERSION":
			return json.Marshal(version.All)
		}
		return nil, nil
	}
}

func answer(c Call, r types.Result) ([]byte, error) {
	var conf struct {
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(c.Stdin, &conf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "delegatetest: "+err.Error(), "")
	}
	if conf.CNIVersion == "" {
		conf.CNIVersion = "0.1.0" // as the specification has it; libcni leaves it empty
	}
	if r == nil {
		if len(conf.PrevResult) > 0 && string(conf.PrevResult) != "null" {
			return conf.PrevResult, nil
		}
		return json.Marshal(map[string]string{"cniVersion": conf.CNIVersion})
	}
	converted, err := r.GetAsVersion(conf.CNIVersion)
	if err != nil {
		return nil, types.NewError(types.ErrIncompatibleCNIVersion, "delegatetest: "+err.Error(), "")
	}
	return json.Marshal(converted)
}

// FailOn returns p with its command replaced by a failure with code and msg.
func FailOn(command string, code uint, msg string, p Plugin) Plugin {
	return on(command, p, func(context.Context, Call) ([]byte, error) {
		return nil, types.NewError(code, msg, "")
	})
}

// HangOn returns p with its command replaced by a wait for the context's end.
// The error then says as little as that of a killed process.
func HangOn(command string, p Plugin) Plugin {
	return on(command, p, func(ctx context.Context, _ Call) ([]byte, error) {
		<-ctx.Done()
		return nil, errors.New("signal: killed")
	})
}

// NoiseOn returns p with noise printed before what its command prints.
func NoiseOn(command, noise string, p Plugin) Plugin {
	return on(command, p, func(ctx context.Context, c Call) ([]byte, error) {
		out, err := p(ctx, c)
		return slices.Concat([]byte(noise), out), err
	})
}

// on returns p with its command replaced by do.
func on(command string, p, do Plugin) Plugin {
	return func(ctx context.Context, c Call) ([]byte, error) {
		if c.Command == command {
			return do(ctx, c)
		}
		return p(ctx, c)
	}
}
