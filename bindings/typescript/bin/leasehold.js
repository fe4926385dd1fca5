#!/usr/bin/env node
// The command: this process becomes the program `leasehold`, so that signals, exit codes and the terminal are its own.
'use strict';

const { command, native } = require('../dist/native.js');

const problem = native.exec(command, process.argv.slice(2));
console.error(`leasehold: cannot run ${command}: ${problem}`);
process.exitCode = 71;
