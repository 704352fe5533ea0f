// Package api holds what the module promises to the outside: its exported
// identifiers (testdata, one file a package) and its imports (imports_test.go).
// Both change only on purpose:
//
//	go test ./internal/api -update
//
// Its tests also hold .github, the Makefile, the scripts of .ci and the Dockerfiles
// to naming only what exists (repository_test.go).
package api
