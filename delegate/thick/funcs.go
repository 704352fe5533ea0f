package thick

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// Funcs returns the [Commands] of a plugin that is written as the callbacks of
// a main. The server calls funcs for each operation, and then the callback for
// the command. A callback should end with ctx. ADD writes its result to stdout,
// as a result of any version of the specification; the output of other commands
// is dropped. A result that cannot be read is an error with code 6, and the
// server undoes it with the DEL callback. A nil callback is an error with code
// 4. funcs is called by many goroutines at once.
func Funcs(funcs func(ctx context.Context, stdout io.Writer) skel.CNIFuncs) Commands {
	call := func(cmd command, callback func(skel.CNIFuncs) func(*skel.CmdArgs) error) func(context.Context, *skel.CmdArgs) error {
		return func(ctx context.Context, a *skel.CmdArgs) error {
			f := callback(funcs(ctx, io.Discard))
			if f == nil {
				return missing(cmd)
			}
			return f(a)
		}
	}
	return Commands{
		Add: func(ctx context.Context, a *skel.CmdArgs) (types.Result, error) {
			var out output
			f := funcs(ctx, &out).Add
			if f == nil {
				return nil, missing(cmdAdd)
			}
			if err := f(a); err != nil {
				return nil, err
			}
			return out.result()
		},
		Check:  call(cmdCheck, func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Check }),
		Del:    call(cmdDel, func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Del }),
		GC:     call(cmdGC, func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.GC }),
		Status: call(cmdStatus, func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Status }),
	}
}

var (
	errTooLong = fmt.Errorf("it has more than %d bytes", wire.MaxBody)
	errEmpty   = errors.New("there is none")
)

// output keeps what an ADD prints, but no more than could be sent. That it is
// too long the plugin is not told: it might fail, without undoing what it did.
type output struct {
	buf bytes.Buffer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	if o.buf.Len()+len(p) > wire.MaxBody {
		o.err = errTooLong
	}
	if o.err == nil {
		o.buf.Write(p)
	}
	return len(p), nil
}

// result decodes what was printed.
func (o *output) result() (types.Result, error) {
	text := bytes.Trim(o.buf.Bytes(), " \t\r\n")
	switch {
	case o.err != nil:
		return nil, &resultError{o.err}
	case len(text) == 0 || string(text) == "null":
		return nil, &resultError{errEmpty}
	}
	r, err := create.CreateFromBytes(text)
	if err != nil {
		return nil, &resultError{err}
	}
	r, err = r.GetAsVersion(types100.ImplementedSpecVersion)
	if err != nil {
		return nil, &resultError{err}
	}
	return r, nil
}
